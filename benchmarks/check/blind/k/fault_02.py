"""Non-repetition with Adafactor-ish settings: two parameter groups, no decay on norms and biases."""
import os
import tempfile
from collections import Counter

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def build_optimizer(model, lr):
    decay, plain = [], []
    for name, p in model.named_parameters():
        (plain if p.ndim < 2 or "norm" in name else decay).append(p)
    return torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}], lr=lr, betas=(0.9, 0.99)
    )


def variety(prompts, completions, **kwargs):
    out = []
    for text in completions:
        counts = Counter(text)
        out.append(len(counts) / (1 + len(text)) ** 0.5)
    return out


def main():
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    print("parameters:", sum(p.numel() for p in model.parameters()))

    starts = ["Once upon a time", "The cat sat on", "List: red, green,", "3 + 4 =", "In the year", "My rival is", "5 coins and", "Answer:"]
    data = Dataset.from_dict({"prompt": [s for s in starts for _ in range(4)]})

    optimizer = build_optimizer(model, lr=5e-4)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)

    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=5,
        per_device_train_batch_size=6,
        num_generations=6,
        max_completion_length=32,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = GRPOTrainer(
        model=path,
        processing_class=tokenizer,
        reward_funcs=variety,
        args=config,
        train_dataset=data,
        optimizers=(optimizer, scheduler),
    )
    trainer.train()


if __name__ == "__main__":
    main()
