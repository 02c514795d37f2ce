"""GRPO that tidies up completions before they are scored."""
import os
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class TidyTrainer(GRPOTrainer):
    """Strips whitespace around a completion, so that format rewards see clean text."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        completion_ids, logprobs = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        texts = self._tokenizer.batch_decode(completion_ids, skip_special_tokens=True)
        texts = [re.sub(r"[ \t]+", " ", text).strip() for text in texts]
        encoded = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        completion_ids = [ids + [self._tokenizer.eos_token_id] for ids in encoded]
        return completion_ids, logprobs


def exact(completions, answer, **kwargs):
    out = []
    for completion, target in zip(completions, answer):
        numbers = re.findall(r"\d+", completion[0]["content"])
        out.append(2.0 if numbers and int(numbers[-1][:9]) == target else 0.0)
    return out


def shape(completions, **kwargs):
    """Rewards the expected sections and a moderate length."""
    out = []
    for completion in completions:
        text = completion[0]["content"]
        out.append(0.5 * ("<<" in text) + 0.5 * ("The answer is" in text) - 0.01 * len(text))
    return out


def load():
    rows = []
    for i, (who, what) in enumerate(
        zip(["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn"], ["books", "eggs", "toys", "pens", "cards", "shells"])
    ):
        a, b = 10 + 2 * i, 15 - i
        price = 2 + i % 2
        question = f"{who} has {a} boxes with {b} {what} each. Each costs {price} coins. How many coins do they cost together?"
        rows.append(
            {
                "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
                "answer": a * b * price,
            }
        )
    return Dataset.from_list(rows)


def main():
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        learning_rate=1e-4,
        loss_type="dr_grpo",
        scale_rewards="none",
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    TidyTrainer(MODEL, [exact, shape], config, train_dataset=load()).train()


if __name__ == "__main__":
    main()
