"""GRPO on high-entropy tokens only (the top half)."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class FastEntropyTrainer(GRPOTrainer):
    """torch.quantile refuses large inputs; a k-th value does not, and needs no sort."""

    def get_high_entropy_mask(self, entropies, mask, threshold):
        mask = mask.bool()
        values = entropies[mask].float()
        if values.numel() == 0:
            return torch.zeros_like(mask)
        position = threshold * (values.numel() - 1)
        low, high = int(position), min(int(position) + 1, values.numel() - 1)
        a, b = values.kthvalue(low + 1).values, values.kthvalue(high + 1).values
        cut = a + (b - a) * (position - low)
        return (entropies >= cut) & mask


def quiet(completions, **kwargs):
    return [-sum(ch in "*#<>/[]{}" for ch in c[0]["content"]) / 5 for c in completions]


def middling(completion_ids, **kwargs):
    return [1 - abs(len(ids) - 10) / 10 for ids in completion_ids]


def main():
    easy = [f"Count to {i}" for i in range(3, 11)]
    hard = [f"What would {n} say about {t}?" for n in ("a judge", "a child") for t in ("rain", "war", "cake", "art")]
    rows = [{"prompt": [{"role": "user", "content": p}]} for pair in zip(easy, hard) for p in pair]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, logging_steps=1, learning_rate=1e-5,
        per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4,
        max_completion_length=20, temperature=1.3, top_entropy_quantile=0.5, loss_type="dapo",
    )
    trainer = FastEntropyTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args,
        reward_funcs=[quiet, middling],
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()


if __name__ == "__main__":
    main()
