"""LoRA+ (Hayou et al., 2024) for GRPO: the B matrices learn faster than the A matrices by a constant factor."""
import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, get_constant_schedule_with_warmup
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def lora_plus(model, lr, ratio=8.0, weight_decay=0.0):
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    slow = [p for n, p in named if "lora_A" in n]
    fast = [p for n, p in named if n.endswith("lora_B.weight")]
    return torch.optim.AdamW(
        [{"params": slow, "lr": lr}, {"params": fast, "lr": lr * ratio}],
        betas=(0.9, 0.95),
        weight_decay=weight_decay,
    )


def reward(completions, completion_ids, **kwargs):
    return [
        0.2 * len({t[i : i + 2] for i in range(len(t) - 1)}) - 0.03 * len(ids)
        for t, ids in zip(completions, completion_ids)
    ]


def main():
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    optimizer = lora_plus(model, lr=5e-4)
    scheduler = get_constant_schedule_with_warmup(optimizer, num_warmup_steps=1)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=16,
            num_generations=8,
            max_completion_length=20,
            max_steps=4,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": [f"Q: {a}-{b}? A:" for a in range(10, 20) for b in range(2, 8)]}),
        processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
        optimizers=(optimizer, scheduler),
    )
    trainer.train()


if __name__ == "__main__":
    main()
