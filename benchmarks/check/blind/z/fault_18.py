import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ScheduleCallback(TrainerCallback):
    """Drives the learning-rate schedule and keeps its values for the run sheet."""

    def __init__(self):
        self.values = []

    def on_optimizer_step(self, args, state, control, optimizer=None, lr_scheduler=None, **kwargs):
        self.values.append(optimizer.param_groups[0]["lr"])
        lr_scheduler.step()

    def on_train_end(self, args, state, control, **kwargs):
        print("learning rates:", " ".join(f"{v:.2e}" for v in self.values))


def make_optimizer(model, lr):
    decay, rest = [], []
    for param in model.parameters():
        (decay if param.dim() >= 2 else rest).append(param)
    groups = [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.99))


def numbers(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch.isdigit() for ch in t) - 0.05 * len(t) + 0.1 * len(set(t)) for t in texts]


def main():
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Double {n} and add 3."}] for n in range(5, 21)]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=0.0001,
        lr_scheduler_type='linear',
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=20,
        save_strategy='no',
    )
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=numbers,
        args=args,
        train_dataset=data,
        optimizers=(make_optimizer(model, args.learning_rate), None),
        callbacks=[ScheduleCallback()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
