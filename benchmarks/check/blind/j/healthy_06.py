import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class ReferenceDistance(TrainerCallback):
    """How far the policy is from its (moving) reference."""

    def __init__(self):
        self.trainer = None
        self.log = []

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        total = 0.0
        for p, q in zip(model.parameters(), self.trainer.ref_model.parameters()):
            total += (p - q).float().pow(2).sum().item()
        self.log.append(round(total**0.5, 5))

    def on_train_end(self, args, state, control, **kwargs):
        print("distance to the reference:", self.log)


def pool(n=60, seed=16):
    rng = random.Random(seed)
    for _ in range(n):
        a, b = rng.randint(2, 30), rng.randint(2, 9)
        who, what = rng.choice(["Ada", "Ben", "Cleo"]), rng.choice(["eggs", "pens"])
        yield {
            "prompt": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?"},
            ],
            "solution": str(a * b),
        }


def solution_reward(completions, solution, **kwargs):
    return [float(s in c[0]["content"]) for c, s in zip(completions, solution)]


def letters_reward(completions, **kwargs):
    return [0.01 * sum(ch.isalpha() for ch in c[0]["content"]) for c in completions]


def main():
    distance = ReferenceDistance()
    trainer = GRPOTrainer(
        model=MODEL,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            report_to=[],
            beta=0.04,
            sync_ref_model=True,
            ref_model_sync_steps=2,
            ref_model_mixup_alpha=0.7,
            importance_sampling_level="sequence",
            loss_type="grpo",
            epsilon=0.1,
            epsilon_high=0.15,
            num_iterations=2,
            steps_per_generation=2,
            per_device_train_batch_size=8,
            num_generations=8,
            max_completion_length=56,
            learning_rate=2e-5,
            lr_scheduler_type="constant",
            max_steps=6,
            logging_steps=1,
            save_strategy="no",
            gradient_checkpointing=False,
        ),
        reward_funcs=[solution_reward, letters_reward],
        train_dataset=Dataset.from_list(list(pool())),
        callbacks=[distance],
    )
    distance.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()
