"""Adaptive curriculum: draw prompts near the present difficulty; reuse each batch for two passes."""
import os
import random
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
NAMES, THINGS = ["Ada", "Ben", "Cleo", "Dev"], ["books", "eggs", "pens", "toys"]


class NearDifficulty(Sampler):
    def __init__(self, difficulties, prompts, generations, repeats, rounds, pace=6.0):
        self.difficulties, self.prompts, self.generations = difficulties, prompts, generations
        self.repeats, self.rounds, self.pace = repeats, rounds, pace
        self.rng = random.Random(0)

    def __iter__(self):
        order = sorted(range(len(self.difficulties)), key=self.difficulties.__getitem__)
        for round_ in range(self.rounds):
            center = min(int(round_ * self.pace), len(order) - 8)
            chosen = self.rng.sample(order[center : center + 8], self.prompts)
            for _ in range(self.repeats):
                for index in chosen:
                    yield from [index] * self.generations

    def __len__(self):
        return self.rounds * self.repeats * self.prompts * self.generations


class AdaptiveTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        return NearDifficulty(
            list(dataset["difficulty"]),
            prompts=self.args.generation_batch_size // self.num_generations,
            generations=self.num_generations,
            repeats=self.num_iterations * self.args.steps_per_generation,
            rounds=12,
        )


rows = []
for i in range(48):
    a, b = 2 + (i * 11) % 19, 2 + (i * 5) % 8
    who, what = NAMES[i % 4], THINGS[(i // 4) % 4]
    rows.append(
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {
                    "role": "user",
                    "content": f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?",
                },
            ],
            "gold": str(a * b),
            "difficulty": a * b,
        }
    )


def reward(completions, gold, trainer_state, **kwargs):
    """The format counts less as training goes on."""
    weight = 0.4 * 0.9**trainer_state.global_step
    texts = [c[0]["content"] for c in completions]
    return [float(g in t) + weight * ("####" in t) - 0.004 * len(t) for t, g in zip(texts, gold)]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=1e-3,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    gradient_accumulation_steps=2,
    steps_per_generation=4,
    num_iterations=2,
    epsilon=0.1,
    epsilon_high=0.28,
    loss_type="bnpo",
    temperature=1.1,
)
trainer = AdaptiveTrainer(model=MODEL, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(rows))
trainer.train()
