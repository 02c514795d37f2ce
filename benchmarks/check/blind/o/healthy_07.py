"""Off-policy GSPO: one large generation, four micro-batches, two passes, and a curriculum of our own."""
import os
import random
import tempfile

from datasets import Dataset
from torch.utils.data import DataLoader
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class MixedDifficulty:
    """Batch sampler: each generation batch holds the next easy prompts and the next hard prompts."""

    def __init__(self, difficulty, prompts_per_batch, group, reuse, seed):
        order = sorted(range(len(difficulty)), key=difficulty.__getitem__)
        half = len(order) // 2
        self.easy, self.hard = order[:half], order[half:]
        self.k, self.group, self.reuse, self.seed = prompts_per_batch, group, reuse, seed

    def __iter__(self):
        rng = random.Random(self.seed)
        easy, hard = rng.sample(self.easy, len(self.easy)), rng.sample(self.hard, len(self.hard))
        step = self.k // 2
        for i in range(0, len(easy) - step + 1, step):
            prompts = easy[i : i + step] + hard[i : i + step]
            rng.shuffle(prompts)
            rows = [p for p in prompts for _ in range(self.group)]
            for _ in range(self.reuse):
                yield rows

    def __len__(self):
        return len(self.easy) // (self.k // 2) * self.reuse


class CurriculumTrainer(GRPOTrainer):
    def get_train_dataloader(self):
        sampler = MixedDifficulty(
            self.train_dataset["difficulty"],
            prompts_per_batch=self.args.generation_batch_size // self.num_generations,
            group=self.num_generations,
            reuse=self.num_iterations * self.args.steps_per_generation,
            seed=self.args.seed,
        )
        return DataLoader(self.train_dataset, batch_sampler=sampler, collate_fn=self.data_collator)


def reward(completions, completion_ids, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / 5 - 0.03 * len(i) for c, i in zip(completions, completion_ids)]


if __name__ == "__main__":
    rng = random.Random(7)
    rows = []
    for _ in range(32):
        a, b = rng.randint(2, 9), rng.randint(10, 99)
        rows.append(
            {
                "prompt": [{"role": "user", "content": f"Finn has {a} boxes with {b} apples each. How many apples does Finn have?"}],
                "difficulty": a * b,
            }
        )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, gradient_accumulation_steps=2,
        steps_per_generation=4, num_iterations=2, num_generations=4, importance_sampling_level="sequence",
        loss_type="grpo", epsilon=3e-2, epsilon_high=4e-2, max_completion_length=24, max_steps=5, learning_rate=5e-5,
        use_cpu=True, bf16=False, report_to=[], logging_steps=1, save_strategy="no",
    )
    CurriculumTrainer(model=MODEL, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(rows)).train()
