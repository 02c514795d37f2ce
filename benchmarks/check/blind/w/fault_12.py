"""GRPO with its own AdamW: decay only on matrices, and a smaller learning rate for the embeddings."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, get_constant_schedule_with_warmup
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset():
    colors = ["red", "blue", "green", "amber", "teal", "ivory"]
    things = ["boat", "door", "coat", "lamp", "kite", "drum"]
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Describe a {c} {t}."}]} for c in colors for t in things]
    )


def spread(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [len(set(t)) / 12 for t in texts]


def punctuation(completions, **kwargs):
    return [-0.1 * sum(ch in "<>{}\"" for ch in c[0]["content"]) for c in completions]


def build_optimizer(model, lr, weight_decay):
    matrices, norms, embeddings = [], [], []
    for name, param in model.named_parameters():
        if not param.requires_grad:
            continue
        if "embed_tokens" in name or "lm_head" in name:
            embeddings.append(param)
        elif "norm" in name:
            norms.append(param)
        elif name.endswith(".weight"):
            matrices.append(param)
    groups = [
        {"params": matrices, "weight_decay": weight_decay, "lr": lr},
        {"params": norms, "weight_decay": 0.0, "lr": lr},
        {"params": embeddings, "weight_decay": 0.0, "lr": lr * 0.5},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.99), eps=1e-8)


def main():
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=5e-4,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=24,
    )
    optimizer = build_optimizer(model, args.learning_rate, weight_decay=0.1)
    scheduler = get_constant_schedule_with_warmup(optimizer, num_warmup_steps=1)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[spread, punctuation],
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        optimizers=(optimizer, scheduler),
    )
    trainer.train()


if __name__ == "__main__":
    main()
