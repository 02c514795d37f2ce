"""GRPO (LoRA) with our own gradient clipping, which logs the norms per module family."""
import os
import re
import tempfile
from collections import defaultdict
from dataclasses import dataclass

import torch
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class ClipConfig:
    max_norm: float = 0.05
    eps: float = 1e-6


class FamilyNormTrainer(GRPOTrainer):
    families = {"attn": r"self_attn", "mlp": r"\.mlp\."}

    @torch.no_grad()
    def _log_family_norms(self, model):
        sums = defaultdict(float)
        for name, p in model.named_parameters():
            if p.grad is None:
                continue
            family = next((f for f, pattern in self.families.items() if re.search(pattern, name)), "other")
            sums[family] += p.grad.float().pow(2).sum().item()
        for family, value in sums.items():
            self._metrics["train"][f"grad_norm/{family}"].append(value**0.5)

    @torch.no_grad()
    def _clip_grad_norm(self, model):
        self._log_family_norms(model)
        grads = (p.grad for p in model.parameters() if p.grad is not None)
        total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.float()) for g in grads]))
        coefficient = (self.args.max_grad_norm / (total + 1e-6)).clamp(max=1.0)
        for g in grads:
            g.mul_(coefficient.to(g.dtype))
        return total


def length_band(completion_ids, **kwargs):
    return [1.0 if 6 <= len(ids) <= 14 else -0.1 * min(abs(len(ids) - 6), abs(len(ids) - 14)) for ids in completion_ids]


def repetition(completion_ids, **kwargs):
    return [-sum(a == b for a, b in zip(ids, ids[1:])) / max(len(ids), 1) for ids in completion_ids]


def main():
    clip = ClipConfig()
    things = ["a kite", "old maps", "the harbor", "garlic", "a violin", "fog", "clay", "a bridge"]
    data = Dataset.from_list(
        [{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Write a sentence about {t}."}]} for t in things]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=20,
        max_grad_norm=clip.max_norm,
        max_steps=4,
        learning_rate=5e-2,
        optim="sgd",
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=6,
    )
    trainer = FamilyNormTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[length_band, repetition],
        args=args,
        train_dataset=data,
        peft_config=LoraConfig(r=8, lora_alpha=32, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"], init_lora_weights="gaussian"),
    )
    trainer.train()


if __name__ == "__main__":
    main()
