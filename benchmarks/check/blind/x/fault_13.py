"""GRPO with our chunked log-softmax (vocabulary of 250k in production; the logits do not fit otherwise)."""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def chunked_logps(hidden, head, labels, chunk=8):
    """Per-token log-probabilities and entropies, a few positions at a time."""
    logps, entropies = [], []
    for start in range(0, hidden.shape[1], chunk):
        logits = head(hidden[:, start : start + chunk]).float()
        log_probs = logits.log_softmax(-1)
        logps.append(log_probs.gather(-1, labels[:, start : start + chunk, None]).squeeze(-1))
        entropies.append(-(log_probs.detach().exp() * log_probs.detach()).sum(-1))
    return torch.cat(logps, 1), torch.cat(entropies, 1)


class ChunkedTrainer(GRPOTrainer):
    logit_chunk = 8

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        core = self.accelerator.unwrap_model(model)
        size = batch_size or input_ids.shape[0]
        logps, entropies = [], []
        for ids, mask in zip(input_ids.split(size), attention_mask.split(size)):
            hidden = core.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            hidden = hidden[:, -logits_to_keep - 1 : -1]
            piece, ent = chunked_logps(hidden, core.lm_head, ids[:, -logits_to_keep:], self.logit_chunk)
            logps.append(piece)
            entropies.append(ent)
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def uppercase(completions, **kwargs):
    return [sum(ch.isupper() for ch in c[0]["content"]) / 4 for c in completions]


def near_eight(completion_ids, **kwargs):
    return [-abs(len(ids) - 8) / 8 for ids in completion_ids]


def main():
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Name a town that starts with {c}."}] for c in "ABCDEFGHIJ"]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=3,
        learning_rate=2e-4, per_device_train_batch_size=8, num_generations=4, max_completion_length=20,
        temperature=1.4, gradient_checkpointing=False, logging_steps=1,
    )
    ChunkedTrainer(model=MODEL, reward_funcs=[uppercase, near_eight], args=args, train_dataset=data).train()


if __name__ == "__main__":
    main()
