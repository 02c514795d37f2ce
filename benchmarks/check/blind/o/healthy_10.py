"""CISPO with a moving reference, only on high-entropy tokens, from a streamed data set, with SGD."""
import os
import random
import tempfile

import torch
from datasets import IterableDataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
STEPS = 4


def stream():
    rng = random.Random(12)
    while True:
        who, what = rng.choice(["Ada", "Gus", "Hana"]), rng.choice(["books", "eggs"])
        a, b = rng.randint(2, 9), rng.randint(10, 99)
        question = f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?"
        yield {"prompt": [{"role": "user", "content": question}], "gold": str(a * b)}


def overlap(completions, gold, **kwargs):
    scores = []
    for completion, g in zip(completions, gold):
        text = completion[0]["content"]
        scores.append(sum(ch in g for ch in text) + 0.2 * sum(ch.isdigit() for ch in text))
    return scores


def triangle(step):
    """Up to the peak at half of the run, then down."""
    x = (step + 1) / (STEPS + 1)
    return 2 * min(x, 1 - x)


def main():
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=5e-3, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, triangle)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        num_iterations=2,
        max_completion_length=24,
        loss_type="cispo",
        epsilon_high=5.0,
        beta=0.02,
        sync_ref_model=True,
        ref_model_sync_steps=1,
        ref_model_mixup_alpha=0.3,
        top_entropy_quantile=0.5,
        max_steps=STEPS,
        learning_rate=5e-3,
        max_grad_norm=0.3,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
        reward_funcs=overlap,
        args=args,
        train_dataset=IterableDataset.from_generator(stream),
        optimizers=(optimizer, scheduler),
    ).train()


if __name__ == "__main__":
    main()
