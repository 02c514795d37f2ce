"""Score completions with a (mock) judge that works in batches of similar length.

The judge is fastest when the texts of a batch are about equally long, so we sort by length, score in batches, and
return the scores.
"""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Judge:
    """Stands in for the judge model: looks at the characters of the text."""

    batch_size = 4

    def __call__(self, texts):
        return [self.quality(text) for text in texts]

    @staticmethod
    def quality(text):
        if not text:
            return 0.0
        letters = sum(c.isalpha() for c in text)
        return letters / len(text) + 0.1 * len(set(text)) - 0.01 * len(text)

    def score_all(self, texts):
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        scores = []
        for start in range(0, len(order), self.batch_size):
            batch = [texts[i] for i in order[start : start + self.batch_size]]
            scores.extend(self(batch))
        return scores


judge = Judge()


def judge_reward(prompts, completions, log_metric=None, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    scores = judge.score_all(texts)
    if log_metric is not None:
        log_metric("judge/best", max(scores))
    return scores


def main():
    subjects = ["rain", "snow", "wind", "fog", "sun", "hail", "storms", "ice"]
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Write one sentence on {subject}."}]} for subject in subjects]
    )
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            num_generations=4,
            max_completion_length=20,
            max_steps=3,
            learning_rate=1e-4,
            beta=0.01,
            loss_type="grpo",
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = GRPOTrainer(model=MODEL, reward_funcs=judge_reward, args=args, train_dataset=dataset)
        trainer.train()


if __name__ == "__main__":
    main()
