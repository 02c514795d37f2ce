import os
import random
import tempfile

from datasets import IterableDataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def stream():
    rng = random.Random(9)
    while True:
        a, b = rng.randint(1, 99), rng.randint(1, 99)
        yield {
            "prompt": [{"role": "user", "content": f"Is {a} + {b} even or odd?"}],
            "parity": "even" if (a + b) % 2 == 0 else "odd",
        }


class SkipAwareTrainer(GRPOTrainer):
    """The schedule is prepared as the optimizer is, so that a skipped update does not move the rate."""

    def create_scheduler(self, num_training_steps, optimizer=None):
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        self.lr_scheduler = self.accelerator.prepare(scheduler)
        return self.lr_scheduler


class Parity:
    def __init__(self, wrong=-0.5):
        self.wrong = wrong
        self.__name__ = "parity"

    def __call__(self, completions, parity, **kwargs):
        scores = []
        for completion, word in zip(completions, parity):
            text = completion[0]["content"].lower()
            other = "odd" if word == "even" else "even"
            scores.append(float(word in text) + self.wrong * float(other in text))
        return scores


def near_ten_characters(completions, **kwargs):
    return [-abs(len(c[0]["content"]) - 10) / 20 for c in completions]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=24,
        max_steps=8,
        learning_rate=2e-4,
        lr_scheduler_type="cosine",
        loss_type="dapo",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = SkipAwareTrainer(
        model=MODEL,
        args=args,
        reward_funcs=[Parity(), near_ten_characters],
        train_dataset=IterableDataset.from_generator(stream),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )
    trainer.train()


if __name__ == "__main__":
    main()
