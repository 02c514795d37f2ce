"""Sequence packing for the scoring forward: one row of real tokens per micro-batch, no padding."""
import os
import tempfile

import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def build(n=24):
    rows = []
    for i in range(n):
        thing = ["apples", "cards", "toys", "pens"][i % 4]
        q = f"Gus has {2 + i % 6} boxes with {2 + (i * 5) % 8} {thing} each."
        q += " Each costs 4 coins. How many coins do they cost together?" if i % 2 else f" How many {thing} does Gus have?"
        rows.append({"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": q}]})
    return Dataset.from_list(rows)


def letters(completions, **kwargs):
    return [len(set(c[0]["content"])) / 20 for c in completions]


class PackedScoring(GRPOTrainer):
    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        rows = [ids[m.bool()] for ids, m in zip(input_ids, attention_mask)]
        scored = attention_mask[:, -logits_to_keep:].sum(1).tolist()
        flat = torch.cat(rows)[None]
        positions = torch.cat([torch.arange(len(r), device=flat.device) for r in rows])[None]
        logits = model(input_ids=flat, position_ids=positions, use_cache=False).logits[0]

        logps, entropies, offset = [], [], 0
        for row, n in zip(rows, scored):
            end = offset + len(row)
            lp = (logits[end - n - 1 : end - 1].float() / self.temperature).log_softmax(-1)
            logps.append(lp.gather(-1, row[len(row) - n :, None])[:, 0])
            if compute_entropy:
                detached = lp.detach()
                entropies.append(-(detached.exp() * detached).sum(-1))
            offset = end

        def to_width(parts):
            table = pad_sequence(parts, batch_first=True)
            return torch.nn.functional.pad(table, (0, logits_to_keep - table.size(1)))

        return to_width(logps), to_width(entropies) if compute_entropy else None, None


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
        learning_rate=2e-4,
        temperature=0.9,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    PackedScoring(model=MODEL, reward_funcs=letters, args=args, train_dataset=build()).train()
