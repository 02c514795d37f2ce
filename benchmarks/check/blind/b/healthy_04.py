from __future__ import annotations

import json
import os
import tempfile
from collections import Counter

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class AuditedTrainer(GRPOTrainer):
    """Logs a lot, and drops runaway completions from the baseline.

    A completion that never stopped is 'not scorable' here: its rewards become NaN, which the trainer leaves out of
    mean and deviation of the group and gives an advantage of zero.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.audit = Counter()
        self.audit_path = os.path.join(self.args.output_dir, "audit.jsonl")

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        runaway = torch.tensor([ids[-1] not in self.eos_token_ids for ids in completion_ids_list])
        self.audit["runaway"] += int(runaway.sum())
        self.audit["rows"] += len(prompts)
        rewards = rewards.clone()
        rewards[runaway] = float("nan")
        return rewards

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        with open(self.audit_path, "a") as f:
            f.write(json.dumps({"step": self.state.global_step, "loss": float(loss.detach()),
                                "adv_abs": float(inputs["advantages"].abs().mean()), **self.audit}) + "\n")
        return loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        out = super().training_step(model, inputs, num_items_in_batch)
        norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
        self.audit["updates_with_grad"] += int(bool(norms))
        return out


def numeric(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c) / (1 + len(c)) - 0.01 * len(c) for c in completions]


if __name__ == "__main__":
    trainer = AuditedTrainer(
        model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
        reward_funcs=numeric,
        train_dataset=Dataset.from_dict({"prompt": [f"{n}*{n}=" for n in range(2, 40)]}),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            beta=0.01,
            learning_rate=1e-5,
            gradient_accumulation_steps=2,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=24,
            max_steps=3,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
        ),
    )
    trainer.train()
    print(dict(trainer.audit))
