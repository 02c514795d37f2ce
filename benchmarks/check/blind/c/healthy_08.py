"""A curriculum that walks from easy to hard problems with a sampler of its own."""
import os
import random
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class EasyFirst(Sampler):
    """All completions of a prompt stand together; a block of prompts is repeated while its completions are reused."""

    def __init__(self, sizes, group, prompts, reuse):
        self.sizes, self.group, self.prompts, self.reuse = sizes, group, prompts, reuse

    def __iter__(self):
        order = sorted(range(len(self.sizes)), key=lambda i: (self.sizes[i], i))
        blocks = [order[i : i + self.prompts] for i in range(0, len(order), self.prompts)]
        for block in blocks:
            if len(block) == self.prompts:
                for _ in range(self.reuse):
                    yield from (i for i in block for _ in range(self.group))

    def __len__(self):
        return len(self.sizes) // self.prompts * self.prompts * self.group * self.reuse


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        data = dataset if dataset is not None else self.train_dataset
        return EasyFirst(
            list(data["size"]),
            self.num_generations,
            self.args.generation_batch_size // self.num_generations,
            self.args.steps_per_generation * self.num_iterations,
        )

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._metrics["train"]["own/size"].append(sum(x["size"] for x in inputs) / len(inputs))
        return rewards


def value(completions, size, **kwargs):
    out = []
    for text, truth in zip(completions, size):
        digits = "".join(c for c in text if c.isdigit())[:3]
        out.append(-abs(int(digits) - truth) / 100 if digits else -2.0)
    return out


rng = random.Random(64)
rows = []
for _ in range(64):
    a, b = rng.randint(2, 20), rng.randint(2, 9)
    rows.append({"prompt": f"They cost <<{a}*{b}=", "size": a * b})

trainer = CurriculumTrainer(
    model=MODEL,
    reward_funcs=value,
    train_dataset=Dataset.from_list(rows),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
        steps_per_generation=2,
        num_generations=4,
        max_completion_length=16,
        learning_rate=3e-5,
        loss_type="sapo",
        top_entropy_quantile=0.8,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to="none",
    ),
)
trainer.train()
