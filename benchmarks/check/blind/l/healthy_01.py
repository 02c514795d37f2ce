"""GRPO with LoRA+ (larger learning rate for the B matrices), own warmup-stable-decay schedule, KL to the base model."""
import os
import tempfile
from dataclasses import dataclass

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class LoraPlus:
    lr: float = 4e-4
    ratio: float = 8.0
    rank: int = 8
    alpha: int = 16
    rslora: bool = True


@dataclass
class Wsd:
    warmup: int = 2
    stable: int = 2
    decay: int = 2

    def __call__(self, step):
        if step < self.warmup:
            return (step + 1) / self.warmup
        if step < self.warmup + self.stable:
            return 1.0
        return max(0.1, 1 - (step - self.warmup - self.stable) / self.decay)


def groups(model, cfg):
    a, b = [], []
    for name, p in model.named_parameters():
        if p.requires_grad:
            (b if "lora_B" in name else a).append(p)
    return [{"params": a, "lr": cfg.lr}, {"params": b, "lr": cfg.lr * cfg.ratio}]


class RateLog(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        print("step", state.global_step, [f"{g['lr']:.1e}" for g in optimizer.param_groups])


def reward_short(completion_ids, **kwargs):
    return [1 - len(ids) / 20 for ids in completion_ids]


def reward_kinds(completion_ids, **kwargs):
    return [len(set(ids)) / 10 for ids in completion_ids]


def main():
    cfg = LoraPlus()
    path = os.path.join(HERE, "tiny")
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model = get_peft_model(
        base,
        LoraConfig(
            r=cfg.rank,
            lora_alpha=cfg.alpha,
            use_rslora=cfg.rslora,
            target_modules="all-linear",
            exclude_modules=["lm_head"],
            task_type="CAUSAL_LM",
        ),
    )
    optimizer = torch.optim.AdamW(groups(model, cfg), weight_decay=0.0, betas=(0.9, 0.95))
    schedule = LambdaLR(optimizer, [Wsd(), Wsd()])
    data = Dataset.from_list(
        [
            {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Write a sentence about {w}."}]}
            for w in ("elms", "oaks", "pines", "yews", "firs", "palms", "birches", "cedars")
        ]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        num_generations=8,
        max_completion_length=20,
        beta=0.05,
        max_steps=4,
        learning_rate=cfg.lr,
        max_grad_norm=0.3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=1,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[reward_short, reward_kinds],
        args=args,
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[RateLog()],
        optimizers=(optimizer, schedule),
    )
    trainer.train()


if __name__ == "__main__":
    main()
