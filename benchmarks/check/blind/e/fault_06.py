import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ForkingTokensTrainer(GRPOTrainer):
    """Trains on the most uncertain tokens of a batch and records how many there are."""

    def get_high_entropy_mask(self, entropies, mask, threshold):
        values = entropies[mask.bool()].float()
        if values.numel() == 0:
            return torch.zeros_like(mask, dtype=torch.bool)
        cut = torch.quantile(values, threshold)
        chosen = (entropies >= cut) & mask.bool()
        share = self.accelerator.gather(chosen.sum() / mask.sum().clamp(min=1)).mean().item()
        self._metrics["train"]["forking/share"].append(share)
        self._metrics["train"]["forking/cut"].append(self.accelerator.gather(cut).mean().item())
        return chosen


def make_dataset(n=40):
    rng = random.Random(13)
    items = ["apples", "coins", "books", "pens"]
    rows = []
    for _ in range(n):
        have, lose = rng.randint(10, 30), rng.randint(1, 9)
        text = f"You have {have} {rng.choice(items)} and lose {lose}. How many are left?"
        rows.append({"prompt": [{"role": "user", "content": text}], "left": str(have - lose)})
    return Dataset.from_list(rows)


async def correct(completions, left, **kwargs):
    return [1.0 if value in c[0]["content"] else 0.0 for c, value in zip(completions, left)]


async def compact(completions, completion_ids, **kwargs):
    return [-len(ids) / 24 + 0.1 * len(set(ids)) for ids in completion_ids]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        num_generations=4,
        steps_per_generation=2,
        gradient_accumulation_steps=1,
        max_completion_length=24,
        max_steps=4,
        learning_rate=1e-4,
        loss_type="dapo",
        top_entropy_quantile=0.3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = ForkingTokensTrainer(
        model=MODEL, args=args, reward_funcs=[correct, compact], train_dataset=make_dataset()
    )
    trainer.train()


if __name__ == "__main__":
    main()
