"""GRPO with parameter groups (own learning rate for the head) and the LM head kept in float32."""
import math
import os
import tempfile
from dataclasses import dataclass

import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class OptimConfig:
    lr: float = 3e-4
    head_lr: float = 6e-4
    weight_decay: float = 0.01
    betas: tuple = (0.9, 0.95)
    steps: int = 4


def parameter_groups(model, cfg):
    head = list(model.get_output_embeddings().parameters())
    head_ids = {id(p) for p in head}
    rest = [p for p in model.parameters() if id(p) not in head_ids]
    return [
        {"params": [p for p in rest if p.ndim >= 2], "lr": cfg.lr, "weight_decay": cfg.weight_decay},
        {"params": [p for p in rest if p.ndim < 2], "lr": cfg.lr, "weight_decay": 0.0},
        {"params": head, "lr": cfg.head_lr, "weight_decay": 0.0},
    ]


def build_optimizer(model, cfg):
    optimizer = torch.optim.AdamW(parameter_groups(model, cfg), betas=cfg.betas, fused=False)
    schedule = LambdaLR(optimizer, lambda s: 0.5 * (1 + math.cos(math.pi * s / (cfg.steps + 1))))
    return optimizer, schedule


def float32_head(model):
    """The logits decide the importance ratios: keep the head in full precision whatever the trunk is in."""
    old = model.get_output_embeddings()
    new = torch.nn.Linear(old.in_features, old.out_features, bias=old.bias is not None, dtype=torch.float32)
    with torch.no_grad():
        new.weight.copy_(old.weight.float())
        if old.bias is not None:
            new.bias.copy_(old.bias.float())
    model.set_output_embeddings(new.to(old.weight.device))
    return model


def reward_digits(completions, **kwargs):
    return [min(sum(ch.isdigit() for ch in c[0]["content"]), 12) / 12 for c in completions]


def reward_brevity(completion_ids, **kwargs):
    return [-0.02 * len(ids) for ids in completion_ids]


def main():
    cfg = OptimConfig()
    path = os.path.join(HERE, "tiny")
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    optimizer, schedule = build_optimizer(model, cfg)
    model = float32_head(model)

    data = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"How many {w} are there?"}]} for w in ("cats", "planets", "days in a week", "keys on a piano", "oceans", "letters", "continents", "months")]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=8,
        gradient_accumulation_steps=2,
        max_completion_length=20,
        max_steps=cfg.steps,
        learning_rate=cfg.lr,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=31,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[reward_digits, reward_brevity],
        args=args,
        train_dataset=data,
        processing_class=tokenizer,
        optimizers=(optimizer, schedule),
    )
    trainer.train()


if __name__ == "__main__":
    main()
