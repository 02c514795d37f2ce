import os
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ExactRatioTrainer(GRPOTrainer):
    """Computes the old log-probabilities on the micro-batch, with the same padding as the training pass."""

    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        if self.model.training and self.num_iterations > 1:
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
            mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
            with torch.no_grad():
                logps, _, _ = self._get_per_token_logps_and_entropies(
                    self.model, ids, mask, inputs["completion_ids"].size(1)
                )
            inputs["old_per_token_logps"] = logps
        return inputs


def reward_last_number(completions, answer, **kwargs):
    out = []
    for c, gold in zip(completions, answer):
        n = re.findall(r"\d+", c[0]["content"])
        out.append(1.0 if n and int(n[-1]) == gold else -0.5)
    return out


def reward_short(completions, **kwargs):
    return [1.0 - min(len(c[0]["content"]), 60) / 60 for c in completions]


dataset = Dataset.from_list([
    {
        "prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"{n} has {a} boxes with {b} books each. How many books does {n} have?"},
        ],
        "answer": a * b,
    }
    for n in ("Finn", "Gus") for a in (2, 3, 4, 5) for b in (4, 6)
])

trainer = ExactRatioTrainer(
    model=MODEL,
    reward_funcs=[reward_last_number, reward_short],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=9, num_iterations=3, learning_rate=2e-4, lr_scheduler_type="constant",
        per_device_train_batch_size=8, num_generations=4, max_completion_length=24, loss_type="bnpo",
        epsilon=0.1,
    ),
    train_dataset=dataset,
)
trainer.train()
