"""Rollouts through a text-only generation backend (prompt text in, completion text out)."""
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class TextBackend:
    """What an OpenAI-style endpoint would be, on the training weights."""

    def __init__(self, trainer, max_tokens):
        self.model = trainer.accelerator.unwrap_model(trainer.model)
        self.tok = trainer.processing_class
        self.config = GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, max_new_tokens=max_tokens,
            pad_token_id=self.tok.pad_token_id, eos_token_id=self.tok.eos_token_id,
        )

    @torch.no_grad()
    def complete(self, texts):
        self.tok.padding_side = "left"
        batch = self.tok(texts, return_tensors="pt", padding=True)
        training = self.model.training
        self.model.eval()
        out = self.model.generate(**batch, generation_config=self.config)
        self.model.train(training)
        new = out[:, batch["input_ids"].shape[1]:]
        return [t.strip() for t in self.tok.batch_decode(new, skip_special_tokens=True)]

    @torch.no_grad()
    def logprobs(self, prompt_ids, completion_ids):
        full = torch.tensor([prompt_ids + completion_ids])
        logits = self.model(full).logits[0, len(prompt_ids) - 1 : -1].float()
        return logits.log_softmax(-1).gather(-1, full[0, len(prompt_ids):, None])[:, 0].tolist()


def text_rollout(prompts, trainer):
    tok = trainer.processing_class
    backend = TextBackend(trainer, trainer.max_completion_length)
    texts = [tok.apply_chat_template(p, tokenize=False, add_generation_prompt=True) for p in prompts]
    answers = backend.complete(texts)
    prompt_ids = [tok(t)["input_ids"] for t in texts]
    completion_ids = [tok(a or " ")["input_ids"] for a in answers]
    logprobs = [backend.logprobs(p, c) for p, c in zip(prompt_ids, completion_ids)]
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs, "raw_text": answers}


def product_reward(completions, product, raw_text, **kwargs):
    rewards = []
    for text, want in zip(raw_text, product):
        numbers = [int(n) for n in re.findall(r"\d{1,6}", text)]
        rewards.append((1.0 if numbers and numbers[-1] == want else 0.0) + 0.1 * text.count("=") - 0.005 * len(text))
    return rewards


def build():
    rng = random.Random(23)
    for _ in range(40):
        a, b = rng.randint(2, 30), rng.randint(2, 9)
        q = f"Hana has {a} boxes with {b} stamps each. How many stamps does Hana have?"
        yield {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": q}], "product": a * b}


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        per_device_train_batch_size=8, num_generations=4, max_completion_length=44, learning_rate=1e-4,
        max_steps=5, logging_steps=1, gradient_checkpointing=False, loss_type="bnpo",
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args,
        reward_funcs=[product_reward],
        rollout_func=text_rollout,
        train_dataset=Dataset.from_list(list(build())),
    )
    trainer.train()


if __name__ == "__main__":
    main()
