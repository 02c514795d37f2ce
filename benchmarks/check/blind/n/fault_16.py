"""GRPO with gradient accumulation on a small machine."""
import gc
import os
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."
PEOPLE = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]


class FrugalTrainer(GRPOTrainer):
    """Frees memory after the rollout, before the backward pass."""

    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        if self.model.training:
            self.model.zero_grad(set_to_none=True)
            gc.collect()
        return inputs


def graded(completions, answer, **kwargs):
    rewards = []
    for completion, value in zip(completions, answer):
        numbers = [int(n[:7]) for n in re.findall(r"\d+", completion[0]["content"])]
        best = min((abs(n - value) / value for n in numbers), default=1.0)
        rewards.append(max(0.0, 1.0 - best))
    return rewards


def short(completion_ids, **kwargs):
    return [-len(ids) / 50 for ids in completion_ids]


def load_problems():
    problems = []
    for i, who in enumerate(PEOPLE):
        boxes, each, price = 10 + i, 19 - i, 2 + i % 3
        problems.append(
            {
                "prompt": [
                    {"role": "system", "content": SYSTEM},
                    {
                        "role": "user",
                        "content": f"{who} has {boxes} boxes with {each} cards each. Each costs {price} coins. "
                        "How many coins do they cost together?",
                    },
                ],
                "answer": boxes * each * price,
            }
        )
    return Dataset.from_list(problems)


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        num_generations=8,
        max_completion_length=28,
        scale_rewards="batch",
        learning_rate=1e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = FrugalTrainer(
        model=MODEL,
        reward_funcs=[graded, short],
        args=args,
        train_dataset=load_problems(),
    )
    trainer.train()


if __name__ == "__main__":
    main()
