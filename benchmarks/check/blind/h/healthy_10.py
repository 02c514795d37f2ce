import os
import tempfile

import torch
from datasets import IterableDataset
from trl import GRPOConfig, GRPOTrainer


class LeaveOneOut(GRPOTrainer):
    """Advantage of a rollout against the mean of the others, shrunk by (G - 1) / G."""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        table = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._table = table
        return table

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        G = self.num_generations
        r = (self._table * self.reward_weights.to(self._table)).sum(-1).reshape(-1, G)
        others = (r.sum(-1, keepdim=True) - r) / (G - 1)
        batch["advantages"] = ((r - others) * (G - 1) / G).flatten()
        return batch


def stream():
    for k in range(1000):
        yield {"prompt": f"{k % 17} and {k % 5} make "}


def digit_count(completions, **kwargs):
    return [float(sum(ch.isdigit() for ch in c)) for c in completions]


def no_newlines(completions, **kwargs):
    return [-float(c.count("\n")) for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
    scale_rewards="none", loss_type="luspo", importance_sampling_level="sequence", delta=1.5,
    beta=0.02, sync_ref_model=True, ref_model_sync_steps=2, ref_model_mixup_alpha=0.5,
    reward_weights=[0.2, 0.1], shuffle_dataset=False, num_iterations=2,
    per_device_train_batch_size=8, num_generations=4, max_completion_length=14,
    learning_rate=1e-2, optim="sgd", max_steps=6, logging_steps=1,
)
trainer = LeaveOneOut(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    [digit_count, no_newlines],
    args=args,
    train_dataset=IterableDataset.from_generator(stream),
)
trainer.train()
