import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ExplicitPositions(GRPOTrainer):
    """Full logits, position ids that start at the first real token, log-sum-exp row by row."""

    def _score_rows(self, model, ids, mask, keep, want_entropy):
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        with self.accelerator.autocast():
            hidden = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
        start = ids.size(1) - keep
        scaled = hidden[:, start - 1:-1, :].float().div(self.temperature)
        logps, entropies = [], []
        for row, target in zip(scaled, ids[:, start:]):
            norm = row.logsumexp(dim=-1)
            logps.append(row[torch.arange(keep), target] - norm)
            if want_entropy:
                p = (row.detach() - norm.detach().unsqueeze(-1)).exp()
                entropies.append(norm.detach() - (p * row.detach()).sum(-1))
        return torch.stack(logps), torch.stack(entropies) if want_entropy else None

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False,
        compute_aux_loss=False, **multimodal,
    ):
        size = batch_size or len(input_ids)
        parts = [
            self._score_rows(model, input_ids[i:i + size], attention_mask[i:i + size], logits_to_keep, compute_entropy)
            for i in range(0, len(input_ids), size)
        ]
        logps = torch.cat([p[0] for p in parts])
        return logps, torch.cat([p[1] for p in parts]) if compute_entropy else None, None


def problems():
    rows = []
    for i in range(48):
        a, b = 2 + i % 9, 2 + (3 * i) % 5
        thing = ("coins", "books", "toys")[i % 3]
        tail = f" Finn has {b} {thing}." if i % 2 else ""
        rows.append({"prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"Hana has {a} {thing}.{tail} How many {thing} do they have?"},
        ]})
    return Dataset.from_list(rows)


def digit_reward(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / (1 + len(c[0]["content"])) for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=8, gradient_accumulation_steps=2,
    num_generations=4, num_iterations=2, max_completion_length=28, learning_rate=1e-4, temperature=0.8, beta=0.03,
    loss_type="bnpo", save_strategy="no", report_to=[], use_cpu=True, bf16=False, logging_steps=1,
)
ExplicitPositions(MODEL, digit_reward, args, train_dataset=problems()).train()
