from dataclasses import dataclass, field
from pathlib import Path
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, get_constant_schedule
from trl import GRPOConfig, GRPOTrainer


@dataclass
class Recipe:
    model: str = str(Path(__file__).resolve().parent / "tiny")
    lr: float = 1e-4
    wd: float = 0.01
    steps: int = 3
    no_decay: tuple = ("bias", "norm")
    out: str = field(default_factory=tempfile.mkdtemp)


def build_optimizer(r: Recipe):
    net = AutoModelForCausalLM.from_pretrained(r.model, dtype=torch.float32)
    decay, plain = [], []
    for name, p in net.named_parameters():
        (plain if any(k in name for k in r.no_decay) else decay).append(p)
    return torch.optim.AdamW(
        [{"params": decay, "weight_decay": r.wd}, {"params": plain, "weight_decay": 0.0}], lr=r.lr
    )


def vowels(completions, **kw):
    return [sum(c.count(v) for v in "aeiou") / (len(c) + 1) + 0.01 * len(c) for c in completions]


def run(r: Recipe):
    opt = build_optimizer(r)
    trainer = GRPOTrainer(
        model=r.model,
        reward_funcs=[vowels],
        args=GRPOConfig(
            output_dir=r.out,
            learning_rate=r.lr,
            max_steps=r.steps,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=20,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
        ),
        train_dataset=Dataset.from_dict({"prompt": [f"{w}: {k}+{k + 3}=" for w in "Sue Max Ida Ben".split() for k in range(2, 8)]}),
        optimizers=(opt, get_constant_schedule(opt)),
    )
    trainer.train()


run(Recipe())
