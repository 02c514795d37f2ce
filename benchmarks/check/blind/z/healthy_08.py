import os
import math
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class HandClipTrainer(GRPOTrainer):
    def _clip_grad_norm(self, model):
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        total = torch.sqrt(sum(g.double().pow(2).sum() for g in grads)).float()
        if total > self.args.max_grad_norm:
            factor = self.args.max_grad_norm / (total + 1e-6)
            for grad in grads:
                grad.mul_(factor)
        self._metrics["train"]["clipped"].append(float(total > self.args.max_grad_norm))
        return total


def build_optimizer(model, lr):
    embed = [p for n, p in model.named_parameters() if "embed_tokens" in n or "lm_head" in n]
    known = {id(p) for p in embed}
    body = [p for p in model.parameters() if id(p) not in known]
    return torch.optim.AdamW(
        [{"params": body, "weight_decay": 0.05}, {"params": embed, "lr": lr / 4, "weight_decay": 0.0}],
        lr=lr,
        betas=(0.9, 0.95),
    )


def half_cosine(total):
    return lambda step: 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(step, total) / total))


def tail(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ord(ch) % 7 for ch in t) / (7 * max(1, len(t))) for t in texts]


def main():
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Round {n}.{n} to a whole number."}] for n in range(1, 17)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=0.0001,
        max_grad_norm=0.2,
        num_generations=8,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_completion_length=20,
        save_strategy='no',
    )
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    optimizer = build_optimizer(model, args.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, half_cosine(args.max_steps))
    trainer = HandClipTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=tail,
        args=args,
        train_dataset=data,
        optimizers=(optimizer, schedule),
    )
    trainer.train()


if __name__ == "__main__":
    main()
