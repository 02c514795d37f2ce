"""Memory-lean log-probabilities: rows in chunks, each chunk without the padding that it does not need."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LeanTrainer(GRPOTrainer):
    rows_per_chunk = 2

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **kwargs
    ):
        logps, entropies = [], []
        for ids, mask in zip(input_ids.split(self.rows_per_chunk), attention_mask.split(self.rows_per_chunk)):
            # left padding: the longest row of the chunk decides how many columns are needed
            columns = max(int(mask.sum(dim=1).max()), logits_to_keep + 1)
            ids, mask = ids[:, -columns:], mask[:, -columns:]
            lp, ent, _ = super()._get_per_token_logps_and_entropies(
                model, ids, mask, logits_to_keep, batch_size=None, **kwargs
            )
            logps.append(lp)
            entropies.append(ent)
        entropies = None if entropies[0] is None else torch.cat(entropies)
        return torch.cat(logps), entropies, None


def numbers_then_stop(completions, completion_ids, **kwargs):
    return [
        sum(c in "246" for c in text) / 10 + (1.0 if ids[-1] == 258 else 0.0) - 0.03 * len(ids)
        for text, ids in zip(completions, completion_ids)
    ]


rows = []
for a in range(2, 9):
    rows.append({"prompt": f"x={a}; y=3; x*y="})
    rows.append({"prompt": f"Given that x={a} and that y={a + 1}: x=7; y=2; x*y="})
    rows.append({"prompt": f"Write a number between {a} and {a + 9}.\nx=1; y=2; x*y="})

trainer = LeanTrainer(
    model=MODEL,
    reward_funcs=numbers_then_stop,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=24,
        learning_rate=1e-4,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    ),
    train_dataset=Dataset.from_list(rows),
    processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
)
trainer.train()
