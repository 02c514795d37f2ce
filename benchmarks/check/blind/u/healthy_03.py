"""Log-probabilities from the full logits instead of TRL's fused head, at temperature 0.7.

Prompts are plain strings, some of them twice in the data. The collator only copies rows and adds a column that the
reward needs.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class FullLogitsTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        size = batch_size or input_ids.size(0)
        logps, entropies = [], []
        for start in range(0, input_ids.size(0), size):
            ids = input_ids[start : start + size]
            attended = attention_mask[start : start + size]
            with self.accelerator.autocast():
                logits = model(
                    input_ids=ids, attention_mask=attended, logits_to_keep=logits_to_keep + 1, use_cache=False
                ).logits
            logits = logits[:, :-1].float() / self.temperature
            log_probs = torch.log_softmax(logits, dim=-1)
            targets = ids[:, -logits_to_keep:]
            real = attended[:, -logits_to_keep:].bool()
            chosen = log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
            logps.append(chosen.masked_fill(~real, 0.0))
            if compute_entropy:
                entropies.append(-(log_probs.exp() * log_probs).sum(-1).masked_fill(~real, 0.0))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def with_budget(rows):
    return [{**row, "budget": 6 + len(row["prompt"]) % 5} for row in rows]


def keep_budget(completion_ids, budget, **kwargs):
    return [-abs(len(ids) - b) / 10 for ids, b in zip(completion_ids, budget)]


def words(completions, **kwargs):
    return [0.1 * len(c.split()) for c in completions]


if __name__ == "__main__":
    texts = [f"There are {n} boxes with {n + 1} eggs each." for n in range(2, 14)]
    data = Dataset.from_dict({"prompt": texts + texts[:6] + ["The answer is ", "They cost <<", "#### ", "Ada has "]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=4, gradient_accumulation_steps=2, steps_per_generation=4, num_generations=4,
        max_completion_length=20, learning_rate=5e-5, temperature=0.7, beta=0.02, logging_steps=1,
    )
    trainer = FullLogitsTrainer(model=TINY, reward_funcs=[keep_budget, words], args=args, train_dataset=data)
    trainer.data_collator = with_budget
    trainer.train()
