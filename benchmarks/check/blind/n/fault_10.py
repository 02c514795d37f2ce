"""GRPO with a KL penalty on one small device: no second copy of the weights is kept."""
import gc
import os
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class LowMemoryTrainer(GRPOTrainer):
    """The reference has the policy's architecture, so its weights can be shared."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.ref_model is not None:
            self.ref_model = None
            gc.collect()
            self.ref_model = self.accelerator.unwrap_model(self.model)

    def log(self, logs, start_time=None):
        logs["memory/parameters_m"] = sum(p.numel() for p in self.model.parameters()) / 1e6
        super().log(logs, start_time)


def correct(completions, answer, **kwargs):
    rewards = []
    for completion, value in zip(completions, answer):
        match = re.search(r"(?:####|answer is)\s*(\d+)", completion[0]["content"])
        rewards.append(float(match is not None) + float(match is not None and int(match.group(1)[:9]) == value))
    return rewards


def variety(completions, **kwargs):
    return [len(set(completion[0]["content"])) / 20 for completion in completions]


def build():
    rows = []
    for a in (11, 13, 15, 17):
        for b in (12, 14):
            rows.append(
                {
                    "prompt": [
                        {"role": "system", "content": SYSTEM},
                        {"role": "user", "content": f"Finn has {a} boxes with {b} eggs each. How many eggs does Finn have?"},
                    ],
                    "answer": a * b,
                }
            )
    return Dataset.from_list(rows)


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        beta=0.05,
        learning_rate=5e-4,
        lr_scheduler_type="constant",
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = LowMemoryTrainer(
        model=MODEL,
        reward_funcs=[correct, variety],
        args=args,
        train_dataset=build(),
    )
    trainer.train()


if __name__ == "__main__":
    main()
