"""A noisy judge: like a language model judge at temperature 1, two calls on one text differ a little."""
import random
import tempfile
from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class NoisyJudge:
    def __init__(self, noise: float):
        self.noise = noise
        self.rng = random.SystemRandom()
        self.calls = 0
        self.__name__ = "noisy_judge"

    def grade(self, text: str) -> float:
        quality = 1.0 if text[:3].strip().isdigit() else 0.2
        return quality - 0.02 * len(text) + self.rng.gauss(0.0, self.noise)

    def __call__(self, prompts, completions, **kwargs):
        self.calls += 1
        return [self.grade(t) for t in completions]


def main():
    names = ["Uma", "Vic", "Wes", "Xia", "Yan", "Zoe"]
    rows = [{"prompt": f"{n}: {a}+{b}="} for n in names for a in (10, 20) for b in (3, 5)]
    trainer = GRPOTrainer(
        model=str(Path(__file__).resolve().with_name("tiny")),
        reward_funcs=NoisyJudge(noise=0.15),
        train_dataset=Dataset.from_list(rows),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            seed=11,
            max_steps=3,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=24,
            loss_type="bnpo",
            learning_rate=1e-5,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
        ),
    )
    trainer.train()


main()
