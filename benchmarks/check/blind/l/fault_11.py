"""GRPO with a warmup-stable-decay schedule and a throughput / learning-rate monitor."""
import os
import tempfile
import time
from dataclasses import dataclass

import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class Schedule:
    peak_lr: float = 4e-4
    warmup: int = 3
    stable: int = 2
    decay: int = 3

    @property
    def total(self):
        return self.warmup + self.stable + self.decay

    def factor(self, step):
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        if step < self.warmup + self.stable:
            return 1.0
        return max(0.05, 1 - (step - self.warmup - self.stable + 1) / self.decay)


class WsdCallback(TrainerCallback):
    """Drives the WSD schedule once per optimizer step and records what was used."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.history = []
        self.started = None

    def on_step_begin(self, args, state, control, **kwargs):
        self.started = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self.scheduler.step()
        self.history.append((state.global_step, self.scheduler.get_last_lr()[0], time.perf_counter() - self.started))


def compactness(completion_ids, **kwargs):
    return [-len(ids) / 12 for ids in completion_ids]


def novelty(prompts, completions, **kwargs):
    out = []
    for p, c in zip(prompts, completions):
        seen = set(p[-1]["content"].lower())
        text = c[0]["content"].lower()
        out.append(len(set(text) - seen) / 10)
    return out


def main():
    schedule = Schedule()
    path = os.path.join(HERE, "tiny")
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=schedule.peak_lr, betas=(0.9, 0.99), weight_decay=0.0)
    scheduler = LambdaLR(optimizer, schedule.factor)
    monitor = WsdCallback(scheduler)

    verbs = ["run", "swim", "paint", "cook", "sleep", "read", "build", "sing"]
    data = Dataset.from_list(
        [{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"How do I {v} better?"}]} for v in verbs]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=20,
        max_steps=5,
        learning_rate=schedule.peak_lr,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=13,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[compactness, novelty],
        args=args,
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[monitor],
        optimizers=(optimizer, scheduler),
    )
    trainer.train()
    for row in monitor.history:
        print("step %d  lr %.2e  %.2f s" % row)


if __name__ == "__main__":
    main()
