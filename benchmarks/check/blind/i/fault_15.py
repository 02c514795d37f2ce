import os
import random
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer


class MixedSampler(Sampler):
    """Draws prompts with replacement; micro-batches get rows of several prompts."""

    def __init__(self, n_rows, prompts_per_batch, repeats, reuse, seed):
        self.n_rows, self.prompts_per_batch = n_rows, prompts_per_batch
        self.repeats, self.reuse, self.seed = repeats, reuse, seed

    def __len__(self):
        return self.n_rows // self.prompts_per_batch * self.prompts_per_batch * self.repeats * self.reuse

    def __iter__(self):
        rng = random.Random(self.seed)
        for _ in range(self.n_rows // self.prompts_per_batch):
            chosen = rng.sample(range(self.n_rows), self.prompts_per_batch)
            block = [i for i in chosen for _ in range(self.repeats)]
            rng.shuffle(block)
            for _ in range(self.reuse):
                yield from block


class MixedTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        return MixedSampler(
            len(dataset),
            self.args.generation_batch_size // self.num_generations,
            self.num_generations,
            self.num_iterations * self.args.steps_per_generation,
            self.args.seed,
        )


def closeness(completions, answer, **kwargs):
    scores = []
    for c, gold in zip(completions, answer):
        text = c[0]["content"]
        scores.append(sum(text.count(d) for d in gold) / (len(text) + 2) - 0.005 * len(text))
    return scores


pairs = [(a, b) for a in range(11, 17) for b in range(2, 7)]
ds = Dataset.from_dict(
    {
        "prompt": [[{"role": "user", "content": f"{a} + {b} = ?"}] for a, b in pairs],
        "answer": [str(a + b) for a, b in pairs],
    }
)
MixedTrainer(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=closeness,
    args=GRPOConfig(
        tempfile.mkdtemp(), per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=4,
        max_completion_length=20, learning_rate=1e-4, max_steps=4, logging_steps=1, report_to=[],
        save_strategy="no", use_cpu=True, bf16=False,
    ),
    train_dataset=ds,
).train()
