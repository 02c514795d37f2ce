"""GRPO that scores rows in order of length, two at a time, each pair cut to its own width."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SortedScoringTrainer(GRPOTrainer):
    rows_per_pass = 2

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        prompt_width = input_ids.size(1) - logits_to_keep
        prompt_lengths = attention_mask[:, :prompt_width].sum(1)
        completion_lengths = attention_mask[:, prompt_width:].sum(1)
        order = (prompt_lengths + completion_lengths).argsort(descending=True)
        logps, entropies = [], []
        for rows in order.split(self.rows_per_pass):
            left = prompt_width - int(prompt_lengths[rows].max())
            keep = max(int(completion_lengths[rows].max()), 1)
            window = slice(left, prompt_width + keep)
            lp, ent, _ = super()._get_per_token_logps_and_entropies(
                model, input_ids[rows, window], attention_mask[rows, window], keep, compute_entropy=compute_entropy
            )
            fill = (0, logits_to_keep - keep)
            logps.append(torch.nn.functional.pad(lp, fill))
            if compute_entropy:
                entropies.append(torch.nn.functional.pad(ent, fill))
        back = order.argsort()
        return torch.cat(logps)[back], torch.cat(entropies)[back] if compute_entropy else None, None


def sibilants(completions, **kwargs):
    return [c[0]["content"].count("s") / 3 - len(c[0]["content"]) / 60 for c in completions]


dataset = Dataset.from_dict(
    {"prompt": [[{"role": "user", "content": "again " * n + "and then stop."}] for n in range(1, 13)]}
)
config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    gradient_accumulation_steps=1,
    steps_per_generation=2,
    num_generations=4,
    max_completion_length=28,
    temperature=1.2,
    beta=0.04,
    loss_type="dr_grpo",
    learning_rate=1e-4,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to=[],
)
SortedScoringTrainer(model=MODEL, reward_funcs=sibilants, args=config, train_dataset=dataset).train()
