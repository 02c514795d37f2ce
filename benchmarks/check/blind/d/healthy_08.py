"""GRPO on a stream, with an optimizer of our own: two rates, momentum SGD and a schedule in steps."""
import os
import random
import re
import tempfile

import torch
from datasets import IterableDataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny")


def stream():
    rng = random.Random(12)
    while True:
        a, b = rng.randint(2, 40), rng.randint(2, 40)
        yield {"prompt": [{"role": "user", "content": f"What is {a} + {b}?"}], "meta": {"a": a, "b": b}}


def sums(completions, meta, trainer_state=None, **kwargs):
    values = []
    for completion, m in zip(completions, meta):
        numbers = [int(n[:6]) for n in re.findall(r"\d+", completion[0]["content"])]
        values.append(max((1.0 / (1 + abs(n - m["a"] - m["b"])) for n in numbers), default=-0.1))
    return values


def short(completions, **kwargs):
    return [-0.01 * len(c[0]["content"]) for c in completions]


def build_optimizer(model):
    head = [p for n, p in model.named_parameters() if "lm_head" in n or "embed_tokens" in n]
    body = [p for n, p in model.named_parameters() if not ("lm_head" in n or "embed_tokens" in n)]
    optimizer = torch.optim.SGD(
        [{"params": body, "lr": 4e-3}, {"params": head, "lr": 1e-3}], momentum=0.9, nesterov=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 2 else 0.5)
    return optimizer, schedule


if __name__ == "__main__":
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        loss_type="cispo",
        epsilon_high=5.0,
        max_grad_norm=0.5,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[sums, short],
        args=args,
        train_dataset=IterableDataset.from_generator(stream),
        optimizers=build_optimizer(model),
    )
    trainer.train()
