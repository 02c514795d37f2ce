"""GRPO with a sampling temperature that is lowered over the run, from wide exploration to 0.8."""
import os
import random
import re
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class TemperatureAnnealing(TrainerCallback):
    def __init__(self, start, end):
        self.start, self.end = start, end
        self.trainer = None

    def attach(self, trainer):
        self.trainer = trainer
        trainer.add_callback(self)

    def _set(self, value):
        self.trainer.temperature = value
        self.trainer.generation_config.temperature = value
        self.trainer.generation_kwargs["temperature"] = value

    def on_step_begin(self, args, state, control, **kwargs):
        share = state.global_step / max(state.max_steps - 1, 1)
        self._set(self.start + (self.end - self.start) * share)


def reward_exact(completions, answer, **kwargs):
    return [float(c[0]["content"].strip() == a) for c, a in zip(completions, answer)]


def reward_partial(completions, answer, **kwargs):
    out = []
    for c, a in zip(completions, answer):
        text = c[0]["content"]
        out.append(0.3 * (a in text) + 0.1 * bool(re.search(r"\d", text)) - 0.01 * len(text))
    return out


def rows(n):
    rng = random.Random(77)
    for _ in range(n):
        a, b = rng.randint(2, 30), rng.randint(2, 30)
        question = rng.choice(["What is {} + {}?", "Add {} and {}.", "{} + {} = ?"]).format(a, b)
        yield {"prompt": [{"role": "user", "content": question}], "answer": str(a + b)}


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        temperature=1.3,
        max_steps=4,
        learning_rate=5e-5,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[reward_exact, reward_partial],
        args=args,
        train_dataset=Dataset.from_list(list(rows(48))),
    )
    TemperatureAnnealing(1.3, 0.8).attach(trainer)
    trainer.train()


if __name__ == "__main__":
    main()
