"""GRPO on short sums with a (pretend) expensive judge."""
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class Judge:
    """Scores answers; each verdict costs money, so verdicts are remembered."""

    __name__ = "judge"

    def __init__(self):
        self.verdicts = {}
        self.paid = 0

    def _ask(self, text):
        self.paid += 1
        digits = sum(ch.isdigit() for ch in text)
        return digits / (len(text) + 1) + 0.3 * text.count("e") / 10 - 0.01 * len(text)

    def __call__(self, completions, qid, **kwargs):
        out = []
        for q, completion in zip(qid, completions):
            text = completion[0]["content"]
            if q not in self.verdicts:
                self.verdicts[q] = self._ask(text)
            out.append(self.verdicts[q])
        return out


def main():
    rows = {"qid": [], "prompt": []}
    for a in range(2, 10):
        for b in range(1, 4):
            rows["qid"].append(f"q-{a}-{b}")
            rows["prompt"].append([{"role": "user", "content": f"What is {a}+{b}?"}])
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        max_steps=5,
        learning_rate=2e-4,
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
    )
    judge = Judge()
    trainer = GRPOTrainer(os.path.join(HERE, "tiny"), reward_funcs=judge, args=args, train_dataset=Dataset.from_dict(rows))
    trainer.train()
    print("verdicts paid for:", judge.paid)


if __name__ == "__main__":
    main()
