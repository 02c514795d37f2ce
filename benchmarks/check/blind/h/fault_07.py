import os
import tempfile
import torch
from torch.utils.data import WeightedRandomSampler
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

BASE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class HardExamplesMoreOften(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        weights = torch.tensor(dataset["difficulty"], dtype=torch.double)
        g = torch.Generator().manual_seed(self.args.seed)
        return WeightedRandomSampler(
            weights, num_samples=len(dataset) * self.num_generations, replacement=True, generator=g
        )


pairs = [(a, b) for a in range(2, 9) for b in range(2, 6)]
train_set = Dataset.from_dict(
    {
        "prompt": [f"{a}+{b}*{a}=" for a, b in pairs],
        "difficulty": [1.0 + 0.2 * a * b for a, b in pairs],
    }
)


def share_of_digits(completions, difficulty, **kwargs):
    return [sum(x in "0123456789" for x in c) / (len(c) + 1) for c in completions]


trainer = HardExamplesMoreOften(
    model=BASE,
    reward_funcs=share_of_digits,
    train_dataset=train_set,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=12,
        max_steps=6,
        logging_steps=1,
        learning_rate=1e-4,
    ),
)
trainer.train()
