"""GRPO with a small gradient clip, logging the gradient norm of every tensor beside the total norm."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset(n=40):
    rng = random.Random(41)
    items = ["apples", "coins", "stamps", "shells", "marbles"]
    rows = []
    for _ in range(n):
        a, b = rng.randint(5, 60), rng.randint(1, 5)
        rows.append({"prompt": [{"role": "user", "content": f"I had {a} {rng.choice(items)} and lost {b}. How many now?"}], "answer": a - b})
    return Dataset.from_list(rows)


def exact(completions, answer, **kwargs):
    return [1.0 if str(a) in c[0]["content"] else 0.0 for c, a in zip(completions, answer)]


def shaping(completions, completion_ids, **kwargs):
    return [
        0.05 * sum(ch.isdigit() for ch in c[0]["content"]) - 0.03 * len(ids)
        for c, ids in zip(completions, completion_ids)
    ]


class TensorNormTrainer(GRPOTrainer):
    def _clip_grad_norm(self, model):
        norms = []
        for name, param in model.named_parameters():
            if param.grad is None:
                continue
            norm = torch.nn.utils.clip_grad_norm_(param, self.args.max_grad_norm)
            self._metrics["train"][f"grad_norm/{name}"].append(norm.item())
            norms.append(norm)
        return torch.linalg.vector_norm(torch.stack(norms))


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=3,
        max_steps=3,
        learning_rate=2e-4,
        max_grad_norm=0.1,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=16,
    )
    trainer = TensorNormTrainer(
        model=TINY,
        reward_funcs=[exact, shaping],
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
    )
    trainer.train()


if __name__ == "__main__":
    main()
