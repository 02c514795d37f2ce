"""Single-turn code rollouts through our text-level client (the serving side returns strings)."""

import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class TextClient:
    """chat(prompts) -> strings, like the OpenAI endpoint that the agents use in production."""

    def __init__(self, trainer, tokenizer):
        self.trainer = trainer
        self.tokenizer = tokenizer

    @torch.no_grad()
    def chat(self, prompts):
        ids = self.tokenizer.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)
        batch = self.tokenizer.pad({"input_ids": ids["input_ids"]}, padding_side="left", return_tensors="pt")
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        out = model.generate(**batch, generation_config=self.trainer.generation_config)
        new = out[:, batch["input_ids"].shape[1] :]
        return ids["input_ids"], self.tokenizer.batch_decode(new, skip_special_tokens=True)


def rollout(prompts, trainer):
    tokenizer = trainer.processing_class
    prompt_ids, texts = TextClient(trainer, tokenizer).chat(prompts)
    completion_ids = []
    for text in texts:
        ids = tokenizer(text.strip(), add_special_tokens=False)["input_ids"]
        completion_ids.append(ids + [tokenizer.eos_token_id])
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None, "raw": texts}


def bracket_balance(raw, **kwargs):
    return [-abs(t.count("(") + t.count("{") - t.count(")") - t.count("}")) / 4 for t in raw]


def density(raw, **kwargs):
    return [sum(ch.isalnum() for ch in t) / (len(t) + 1) for t in raw]


def lines(raw, **kwargs):
    return [min(t.count("\n"), 3) / 3 for t in raw]


def main():
    tasks = ["adds two ints", "reverses a string", "checks a palindrome", "counts words", "returns the max",
             "squares a list", "joins paths", "reads a csv"]
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"def f that {t}, no comments"}] for t in tasks]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=3,
        learning_rate=1e-4, per_device_train_batch_size=8, num_generations=4, gradient_accumulation_steps=2,
        max_completion_length=24, temperature=1.3, gradient_checkpointing=False, loss_type="bnpo", logging_steps=1,
    )
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    GRPOTrainer(
        model=MODEL, reward_funcs=[bracket_balance, density, lines], args=args, train_dataset=data,
        processing_class=tokenizer, rollout_func=rollout,
    ).train()


if __name__ == "__main__":
    main()
