"""GRPO with KL and our own chunked log-probabilities (two passes over each generation)."""

import os
import tempfile

import torch
from datasets import Dataset
from torch.utils.checkpoint import checkpoint
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def score(hidden, weight, labels, temperature):
    logits = torch.nn.functional.linear(hidden, weight).float() / temperature
    norm = torch.logsumexp(logits, dim=-1)
    picked = logits.gather(-1, labels[..., None])[..., 0] - norm
    with torch.no_grad():
        probs = torch.exp(logits - norm[..., None])
        entropy = norm - (probs * logits).sum(-1)
    return picked, entropy


class ChunkedTrainer(GRPOTrainer):
    """Recomputes the logits of a chunk in backward, so that only one chunk's logits are alive."""

    positions = 6

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        core = self.accelerator.unwrap_model(model)
        weight = core.get_output_embeddings().weight
        rows = batch_size or len(input_ids)
        all_logps, all_entropies = [], []
        for ids, mask in zip(input_ids.split(rows), attention_mask.split(rows)):
            states = core.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            states, labels = states[:, -logits_to_keep - 1 : -1], ids[:, -logits_to_keep:]
            parts = [
                checkpoint(score, h, weight, y, self.temperature, use_reentrant=False)
                for h, y in zip(states.split(self.positions, 1), labels.split(self.positions, 1))
            ]
            all_logps.append(torch.cat([p for p, _ in parts], 1))
            all_entropies.append(torch.cat([e for _, e in parts], 1))
        return torch.cat(all_logps), torch.cat(all_entropies) if compute_entropy else None, None


def uppercase(completions, **kwargs):
    return [sum(ch.isupper() for ch in c[0]["content"]) / 4 for c in completions]


def near_eight(completion_ids, **kwargs):
    return [-abs(len(ids) - 8) / 8 for ids in completion_ids]


def main():
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Name {n} towns that start with {c}."}]
                    for n, c in zip((1, 2, 12, 5, 3, 10, 7, 4), "ABCDEFGH")]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=4,
        learning_rate=2e-4, lr_scheduler_type="constant", beta=0.04, num_iterations=2, per_device_train_batch_size=8,
        num_generations=4, max_completion_length=20, temperature=1.3, gradient_checkpointing=False, logging_steps=1,
    )
    ChunkedTrainer(model=MODEL, reward_funcs=[uppercase, near_eight], args=args, train_dataset=data).train()


if __name__ == "__main__":
    main()
