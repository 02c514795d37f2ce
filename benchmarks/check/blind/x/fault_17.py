"""LoRA GRPO with the team's optimizer factory (no decay on norms and biases, warmup then cosine)."""

import math
import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

CFG = {
    "lora": dict(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM"),
    "optim": dict(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01, warmup=1, total=50),
    "data": ["Alwyn", "Bribel", "Corgan", "Danric", "Eltas", "Fensor"],
}


def make_optimizer(model, lr, betas, weight_decay, warmup, total):
    decay, plain = [], []
    for name, p in model.named_parameters():
        (plain if p.ndim < 2 or "norm" in name else decay).append(p)
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}], lr=lr, betas=betas
    )

    def factor(step):
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / (total - warmup))))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def cites(completions, **kwargs):
    return [c[0]["content"].count("[") + 0.05 * len(c[0]["content"]) for c in completions]


def short(completion_ids, **kwargs):
    return [1 - len(ids) / 16 for ids in completion_ids]


def main():
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    optimizer, scheduler = make_optimizer(model, **CFG["optim"])
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Where does {n} live? Cite."}] for n in CFG["data"]]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=3,
        learning_rate=CFG["optim"]["lr"], per_device_train_batch_size=8, num_generations=8, max_completion_length=16,
        temperature=1.3, gradient_checkpointing=False, logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=model, reward_funcs=[cites, short], args=args, train_dataset=data,
        peft_config=LoraConfig(**CFG["lora"]), optimizers=(optimizer, scheduler),
    )
    trainer.train()


if __name__ == "__main__":
    main()
