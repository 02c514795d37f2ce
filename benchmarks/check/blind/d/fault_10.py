"""GRPO with an exponential moving average of the weights, saved beside the model at the end."""
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class EmaCallback(TrainerCallback):
    """Keeps an average of the trained weights for evaluation."""

    def __init__(self, decay=0.95):
        self.decay = decay
        self.average = {}

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.average = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for name, p in model.named_parameters():
            if name in self.average:
                self.average[name].mul_(self.decay).add_(p, alpha=1 - self.decay)

    def on_train_end(self, args, state, control, **kwargs):
        torch.save(self.average, os.path.join(args.output_dir, "ema.pt"))


class NumberReward:
    __name__ = "number_reward"

    def __init__(self, bonus):
        self.bonus = bonus

    def __call__(self, prompts, completions, target, **kwargs):
        rewards = []
        for completion, t in zip(completions, target):
            numbers = re.findall(r"\d+", completion[0]["content"])
            reward = self.bonus if numbers else 0.0
            if numbers and int(numbers[0][:9]) == t:
                reward += 1.0
            rewards.append(reward - 0.01 * len(completion[0]["content"]))
        return rewards


def questions(n):
    rng = random.Random(21)
    for _ in range(n):
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        yield {
            "prompt": [
                {"role": "system", "content": "Answer with a number."},
                {"role": "user", "content": f"What is {a} * {b}?"},
            ],
            "target": a * b,
        }


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=1e-5,
    beta=0.01,
    loss_type="dr_grpo",
    scale_rewards="none",
    bf16=False,
    use_cpu=True,
    logging_steps=1,
    report_to="none",
    save_strategy="no",
)
trainer = GRPOTrainer(
    model=os.path.join(HERE, "tiny"),
    reward_funcs=NumberReward(0.25),
    args=args,
    train_dataset=Dataset.from_list(list(questions(48))),
    callbacks=[EmaCallback()],
)
trainer.train()
