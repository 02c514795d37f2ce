import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def selective_log_softmax(logits, targets, chunk=4):
    """log p(target), a few rows at a time to bound the float32 copy of the logits."""
    pieces = []
    for part, wanted in zip(logits.split(chunk), targets.split(chunk)):
        part = part.float()
        picked = part.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
        pieces.append(picked - torch.logsumexp(part, dim=-1))
    return torch.cat(pieces)


@torch.no_grad()
def entropy(logits):
    p = torch.softmax(logits.float(), dim=-1)
    return torch.logsumexp(logits.float(), dim=-1) - (p * logits.float()).sum(-1)


class ChunkedTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False,
        compute_aux_loss=False, **multimodal,
    ):
        size = batch_size or input_ids.size(0)
        logps, entropies = [], []
        for ids, mask in zip(input_ids.split(size), attention_mask.split(size)):
            with self.accelerator.autocast():
                out = model(input_ids=ids, attention_mask=mask, logits_to_keep=logits_to_keep + 1, use_cache=False)
            logits = out.logits[:, :-1, :]
            logps.append(selective_log_softmax(logits, ids[:, -logits_to_keep:]))
            if compute_entropy:
                entropies.append(entropy(logits))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def problems():
    rows = []
    for i in range(48):
        a, b = 2 + i % 9, 2 + (3 * i) % 5
        thing = ("coins", "books", "toys")[i % 3]
        rows.append({"prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"Cleo has {a} {thing}. Each costs {b} coins. How many coins do they cost together?"},
        ], "answer": str(a * b)})
    return Dataset.from_list(rows)


def answer_reward(completions, answer, **kwargs):
    return [1.0 if a in c[0]["content"] else 0.0 for c, a in zip(completions, answer)]


def digit_reward(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / (1 + len(c[0]["content"])) for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=8, gradient_accumulation_steps=2,
    num_generations=8, max_completion_length=28, learning_rate=1e-4, temperature=0.7, loss_type="bnpo",
    save_strategy="no", report_to=[], use_cpu=True, bf16=False, logging_steps=1,
)
ChunkedTrainer(MODEL, [answer_reward, digit_reward], args, train_dataset=problems()).train()
