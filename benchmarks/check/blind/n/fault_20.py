"""GRPO with compact checkpoints at every step."""
import os
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class CompactCheckpointTrainer(GRPOTrainer):
    """Saves weights only once: buffers and the output head are rebuilt when the checkpoint is loaded."""

    skip = ("rotary_emb", "lm_head")

    def _save(self, output_dir=None, state_dict=None):
        if state_dict is None:
            state_dict = self.accelerator.get_state_dict(self.model)
        state_dict = {name: tensor for name, tensor in state_dict.items() if not any(s in name for s in self.skip)}
        super()._save(output_dir, state_dict=state_dict)


def exact(completions, answer, **kwargs):
    scores = []
    for completion, value in zip(completions, answer):
        numbers = re.findall(r"\d+", completion[0]["content"])
        scores.append(1.0 if numbers and numbers[-1] == str(value) else 0.0)
    return scores


def symbols(completions, **kwargs):
    return [sum(c[0]["content"].count(ch) for ch in "<>=*") / 8 + 0.01 * len(c[0]["content"]) for c in completions]


def dataset():
    names = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]
    rows = []
    for i, who in enumerate(names):
        a, b = 11 + i, 12 + 3 * i % 7
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"{who} has {a} boxes with {b} apples each. How many apples does {who} have?"},
                ],
                "answer": a * b,
            }
        )
    return Dataset.from_list(rows)


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=20,
        learning_rate=2e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=2,
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = CompactCheckpointTrainer(MODEL, [exact, symbols], args, train_dataset=dataset())
    trainer.train()
    trainer.save_model()
