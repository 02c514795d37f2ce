"""Text-level rollouts: the agent loop of our product speaks text, so training does too.

The rollout function gets text from the model, cleans it up as the product does, and hands the tokens of the clean
text to the trainer, together with their log-probabilities.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class TextPolicy:
    """The interface of the product: text in, text out."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.tokenizer = trainer.processing_class
        self.model = trainer.accelerator.unwrap_model(trainer.model)

    def render(self, messages):
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)

    @torch.no_grad()
    def complete(self, texts):
        inputs = self.tokenizer(
            texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False
        ).to(self.model.device)
        output = self.model.generate(**inputs, generation_config=self.trainer.generation_config)
        new = output[:, inputs["input_ids"].shape[1] :]
        return [text.strip() for text in self.tokenizer.batch_decode(new, skip_special_tokens=True)]

    @torch.no_grad()
    def score(self, prompt_ids, completion_ids):
        """Log-probabilities of the completion's tokens under the policy."""
        ids = torch.tensor([prompt_ids + completion_ids], device=self.model.device)
        logits = self.model(input_ids=ids).logits[0, len(prompt_ids) - 1 : -1]
        logp = torch.log_softmax(logits.float() / self.trainer.temperature, dim=-1)
        return logp.gather(1, ids[0, len(prompt_ids) :, None]).squeeze(1).tolist()


def rollout(prompts, trainer):
    policy = TextPolicy(trainer)
    texts = [policy.render(messages) for messages in prompts]
    answers = policy.complete(texts)
    prompt_ids = policy.tokenizer(texts, add_special_tokens=False)["input_ids"]
    completion_ids = [
        policy.tokenizer(answer, add_special_tokens=False)["input_ids"] + [policy.tokenizer.eos_token_id]
        for answer in answers
    ]
    logprobs = [policy.score(p, c) for p, c in zip(prompt_ids, completion_ids)]
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}


def length_reward(completions, **kwargs):
    return [-abs(len(c[0]["content"]) - 10) / 20 for c in completions]


def main():
    questions = ["Say a number.", "Say a colour.", "Say a name.", "Say a word.", "Say a day.", "Say a year."]
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in questions]})
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=16,
            max_steps=3,
            learning_rate=1e-4,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = GRPOTrainer(
            model=MODEL, reward_funcs=length_reward, args=args, train_dataset=dataset, rollout_func=rollout
        )
        trainer.train()


if __name__ == "__main__":
    main()
