"""GRPO with a drift monitor: loss and gradient norm of the policy on a few held-out sentences."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
HELD_OUT = ["How many coins do they cost together?", "The sum of 4 and 5 is 9.", "hello, how are you?"]


class DriftMonitor(TrainerCallback):
    def __init__(self, tokenizer, every=1):
        self.batch = tokenizer(HELD_OUT, return_tensors="pt", padding=True, padding_side="right")
        self.labels = self.batch["input_ids"].masked_fill(self.batch["attention_mask"] == 0, -100)
        self.every = every
        self.history = []

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.every:
            return
        was_training = model.training
        model.eval()
        with torch.enable_grad():
            batch = {k: self.batch[k].to(model.device) for k in ("input_ids", "attention_mask")}
            loss = model(**batch, labels=self.labels.to(model.device)).loss
            loss.backward()
        norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
        self.history.append({"step": state.global_step, "loss": loss.item(), "norm": torch.stack(norms).norm().item()})
        model.train(was_training)

    def on_train_end(self, args, state, control, **kwargs):
        for entry in self.history:
            print("held-out", entry)


def variety(completions, **kwargs):
    return [len(set(c[0]["content"])) / 20 for c in completions]


def main():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    questions = ["Add 4 and 5", "What is 2+3?", "Write a poem", "12 * 4 =", "hello", "Name 3 digits"]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=20,
        temperature=1.2,
        learning_rate=1e-4,
        max_grad_norm=1.0,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=variety,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions * 3]),
        callbacks=[DriftMonitor(tokenizer)],
    )
    trainer.train()


if __name__ == "__main__":
    main()
