"""Training goes on with an adapter that has been trained before.

The policy is a PeftModel whose adapter isn't zero (stands for an adapter from supervised training), so the reference is
TRL's copy of it, the 'ref' adapter. SGD with momentum and a very small gradient norm.
"""

import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def with_adapter():
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    config = LoraConfig(
        r=4, lora_alpha=8, use_rslora=True, lora_dropout=0.0, target_modules=["q_proj", "v_proj", "up_proj"],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
    return model


def letters(completions, **kwargs):
    return [sum(ch.isalpha() for ch in c[0]["content"]) / 30 for c in completions]


def distinct(completion_ids, **kwargs):
    return [len(set(ids)) / 20 for ids in completion_ids]


if __name__ == "__main__":
    model = with_adapter()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Who are the {n} guests?"}] for n in range(2, 42)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=4, gradient_accumulation_steps=4, num_generations=8, max_completion_length=20,
        loss_type="dapo", beta=0.1, max_grad_norm=0.05, epsilon_high=0.28, logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=model, reward_funcs=[letters, distinct], args=args, train_dataset=data,
        optimizers=(optimizer, schedule),
    )
    trainer.train()
