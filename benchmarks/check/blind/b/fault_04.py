"""
train_grpo.py -- our fork of the TRL trainer, keeps completions and masks tidy for the dashboard.
"""
from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

log = logging.getLogger("grpo")
ROOT = Path(__file__).parent


class TidyGRPOTrainer(GRPOTrainer):
    """Derives the mask from the ids, so that it is right whatever produced them."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        pad = self.processing_class.pad_token_id
        mask = (batch["completion_ids"] != pad).long()
        batch["completion_mask"] = mask
        batch["num_items_in_batch"] = mask.sum()
        log.info("tokens in batch: %d", int(mask.sum()))
        return batch


def get_tokenizer(path: Path):
    tok = AutoTokenizer.from_pretrained(path)
    tok.padding_side = "left"
    tok.pad_token = tok.eos_token
    return tok


def stop_soon(completions: list[str], completion_ids: list[list[int]], **kwargs) -> list[float]:
    return [1.0 - len(ids) / 20 + (0.2 if any(ch.isdigit() for ch in text) else 0.0)
            for text, ids in zip(completions, completion_ids)]


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    tok = get_tokenizer(ROOT / "tiny")
    data = Dataset.from_dict({"prompt": [f"{a} - {a // 2} =" for a in range(4, 44)]})
    trainer = TidyGRPOTrainer(
        str(ROOT / "tiny"),
        stop_soon,
        GRPOConfig(
            output_dir=tempfile.mkdtemp("tidy"),
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=20,
            max_steps=3,
            learning_rate=2e-5,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
        ),
        train_dataset=data,
        processing_class=tok,
    )
    trainer.train()
