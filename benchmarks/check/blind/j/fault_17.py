import copy
import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

TEMPLATE = [
    {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
    {"role": "user", "content": ""},
]


class ProblemSet:
    """Collects problems, then turns them into a data set of conversations."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.problems = []

    def add_boxes(self, count):
        for _ in range(count):
            a, b = self.rng.randint(2, 25), self.rng.randint(2, 9)
            thing = self.rng.choice(["apples", "books", "cards", "eggs"])
            self.problems.append(
                (f"Finn has {a} boxes with {b} {thing} each. How many {thing} does Finn have?", a * b)
            )
        return self

    def add_prices(self, count):
        for _ in range(count):
            a, b, c = self.rng.randint(2, 12), self.rng.randint(2, 5), self.rng.randint(2, 5)
            self.problems.append(
                (
                    f"Finn has {a} boxes with {b} pens each. Each costs {c} coins. "
                    "How many coins do they cost together?",
                    a * b * c,
                )
            )
        return self

    def to_dataset(self):
        self.rng.shuffle(self.problems)
        records = []
        for question, answer in self.problems:
            messages = copy.copy(TEMPLATE)
            messages[-1]["content"] = question
            records.append({"prompt": messages, "answer": str(answer), "length": len(question)})
        return Dataset.from_list(records)


def final_number(text):
    tail = text.split("####")[-1] if "####" in text else text.split("answer is")[-1]
    return "".join(ch for ch in tail if ch.isdigit())


def accuracy(completions, answer, **kwargs):
    return [float(final_number(c[0]["content"]) == a) for c, a in zip(completions, answer)]


def work_shown(completions, **kwargs):
    return [0.1 * c[0]["content"].count("=") + 0.01 * min(60, len(c[0]["content"])) for c in completions]


def main():
    dataset = ProblemSet(seed=3).add_boxes(40).add_prices(24).to_dataset()
    print(len(dataset), "problems, mean length", sum(dataset["length"]) / len(dataset))
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=56,
        learning_rate=1e-4,
        warmup_steps=1,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        remove_unused_columns=False,
    )
    GRPOTrainer(model=MODEL, args=args, reward_funcs=[accuracy, work_shown], train_dataset=dataset).train()


if __name__ == "__main__":
    main()
