"""GRPO on a streamed mixture of tasks: rewards apply per task, and a curriculum moves weight from form to content."""
import itertools
import os
import random
import tempfile
from dataclasses import dataclass

import torch
from datasets import IterableDataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class Curriculum:
    start: tuple = (1.0, 1.0, 1.0)
    end: tuple = (1.0, 1.0, 0.2)
    over: int = 4

    def weights(self, step):
        t = min(step / self.over, 1.0)
        return torch.tensor([a + t * (b - a) for a, b in zip(self.start, self.end)])


class CurriculumCallback(TrainerCallback):
    """Sets the reward weights for the next generation."""

    def __init__(self, curriculum):
        self.curriculum, self.trainer = curriculum, None

    def on_step_end(self, args, state, control, **kwargs):
        self.trainer.reward_weights = self.curriculum.weights(state.global_step)


def math_stream(seed):
    rng = random.Random(seed)
    while True:
        a, b = rng.randint(1, 30), rng.randint(1, 30)
        yield {"prompt": [{"role": "user", "content": f"What is {a} + {b}?"}], "task": "math", "target": str(a + b), "length": None}


def prose_stream(seed):
    rng = random.Random(seed)
    things = ["oil", "milk", "wax", "tar", "soap", "jam", "glue", "dye"]
    while True:
        n = rng.choice([6, 9, 12])
        yield {
            "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Write {n} words about {rng.choice(things)}."}],
            "task": "prose",
            "target": None,
            "length": n,
        }


def mixture(seed=0, share=0.5, limit=64):
    rng, math, prose = random.Random(seed), math_stream(seed + 1), prose_stream(seed + 2)
    for _ in itertools.repeat(None, limit):
        yield next(math) if rng.random() < share else next(prose)


def math_reward(completions, task, target, **kwargs):
    out = []
    for c, t, want in zip(completions, task, target):
        if t != "math":
            out.append(None)
            continue
        digits = [ch for ch in c[0]["content"] if ch.isdigit()]
        out.append(sum(d in want for d in digits) / max(len(digits), 1))
    return out


def prose_reward(completion_ids, task, length, **kwargs):
    return [None if t != "prose" else -abs(len(ids) - n) / n for ids, t, n in zip(completion_ids, task, length)]


def form_reward(completion_ids, trainer_state=None, **kwargs):
    return [len(set(ids)) / max(len(ids), 1) for ids in completion_ids]


def main():
    callback = CurriculumCallback(Curriculum())
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=18,
        scale_rewards="batch",
        shuffle_dataset=False,
        max_steps=4,
        learning_rate=2e-4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=7,
    )
    trainer = GRPOTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[math_reward, prose_reward, form_reward],
        args=args,
        train_dataset=IterableDataset.from_generator(mixture, gen_kwargs={"seed": 7}),
        callbacks=[callback],
    )
    callback.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()
