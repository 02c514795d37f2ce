"""Log-probabilities from the full logits, in row chunks without needless padding columns; also recomputed in chunks in
the backward pass. Rollouts are one step off-policy in every second update."""
import os
import tempfile

import torch
from datasets import Dataset
from torch.utils.checkpoint import checkpoint
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ChunkedTrainer(GRPOTrainer):
    rows_per_chunk = 2

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        keep = logits_to_keep

        def forward(ids, mask):
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
            logits = logits[:, -keep - 1 : -1].float() / self.temperature
            log_probs = logits.log_softmax(-1)
            chosen = log_probs.gather(-1, ids[:, -keep:].unsqueeze(-1)).squeeze(-1)
            entropy = -(log_probs.detach().exp() * log_probs.detach()).sum(-1)
            return chosen, entropy

        logps, entropies = [], []
        for ids, mask in zip(input_ids.split(self.rows_per_chunk), attention_mask.split(self.rows_per_chunk)):
            # columns in front that are padding in every row of the chunk
            first = int(mask.argmax(dim=1).min())
            ids, mask = ids[:, first:], mask[:, first:]
            if torch.is_grad_enabled():
                chosen, entropy = checkpoint(forward, ids, mask, use_reentrant=False)
            else:
                chosen, entropy = forward(ids, mask)
            logps.append(chosen)
            entropies.append(entropy)
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


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

trainer = ChunkedTrainer(
    model=MODEL,
    reward_funcs=numbers_then_stop,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        steps_per_generation=2,
        num_generations=8,
        max_completion_length=24,
        temperature=0.8,
        pad_to_multiple_of=8,
        epsilon_high=0.28,
        delta=4.0,
        learning_rate=1e-4,
        max_steps=4,
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
