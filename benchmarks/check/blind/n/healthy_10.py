"""GRPO on two tasks, with a length penalty that grows during training and an average of the weights."""
import os
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class AverageCallback(TrainerCallback):
    """Keeps an average of the weights; puts it into the model for a greedy sample, then the own weights back."""

    def __init__(self, tokenizer, probe, decay=0.9):
        self.tokenizer, self.probe, self.decay = tokenizer, probe, decay
        self.average = None
        self.samples = []

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        own = {name: p.detach().clone() for name, p in model.named_parameters()}
        if self.average is None:
            self.average = {name: p.clone() for name, p in own.items()}
        for name, p in own.items():
            self.average[name].lerp_(p, 1 - self.decay)
        ids = self.tokenizer.apply_chat_template(
            self.probe, add_generation_prompt=True, return_tensors="pt", return_dict=False
        )
        for name, p in model.named_parameters():
            p.copy_(self.average[name])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20)
        for name, p in model.named_parameters():
            p.copy_(own[name])
        self.samples.append(self.tokenizer.decode(out[0, ids.shape[1] :]))


def product(completions, answer, task, **kwargs):
    scores = []
    for completion, value, name in zip(completions, answer, task):
        numbers = re.findall(r"\d+", completion[0]["content"])
        scores.append((1.0 if numbers and numbers[-1] == str(value) else 0.1) if name == "product" else None)
    return scores


def steps(completions, task, **kwargs):
    return [0.2 * c[0]["content"].count("=") if name == "price" else None for c, name in zip(completions, task)]


def length_penalty(completion_ids, trainer_state, **kwargs):
    weight = 0.01 * (1 + trainer_state.global_step)
    return [-weight * len(ids) for ids in completion_ids]


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    rows = []
    for i, who in enumerate(["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]):
        a, b = 10 + i, 18 - i
        task = "price" if i % 2 else "product"
        ask = "Each costs 2 coins. How many coins do they cost together?" if i % 2 else f"How many eggs does {who} have?"
        content = f"{who} has {a} boxes with {b} eggs each. {ask}"
        prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]
        rows.append({"prompt": prompt, "answer": a * b, "task": task})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, gradient_accumulation_steps=4,
        num_generations=8, max_completion_length=28, scale_rewards="batch", reward_weights=[1.0, 1.0, 0.5],
        loss_type="cispo", epsilon_high=5.0, num_iterations=2, learning_rate=1e-4, max_steps=4, logging_steps=1,
        save_strategy="no", use_cpu=True, bf16=False, report_to=[],
    )
    average = AverageCallback(tokenizer, rows[0]["prompt"])
    GRPOTrainer(
        MODEL, [product, steps, length_penalty], args, train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer, callbacks=[average],
    ).train()
    print(average.samples[-1])


if __name__ == "__main__":
    main()
