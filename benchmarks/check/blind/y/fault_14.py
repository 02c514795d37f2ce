"""GRPO with length-balanced ranks: rows move between ranks so that no rank gets all the long ones."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class BalancedTrainer(GRPOTrainer):
    def _prepare_inputs(self, generation_batch):
        rows = super()._prepare_inputs(generation_batch)
        if self.accelerator.num_processes == 1 or not self.model.training:
            return rows
        return self._balance(rows)

    def _balance(self, rows):
        """Deal the rows of all ranks, longest first, like cards."""
        pad_id = self.processing_class.pad_token_id
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        everyone = {}
        for key, value in rows.items():
            if not torch.is_tensor(value) or value.dim() == 0:
                continue
            if value.dim() == 2:
                value = self.accelerator.pad_across_processes(
                    value, dim=1, pad_index=pad_id if key.endswith("_ids") else 0
                )
            everyone[key] = self.accelerator.gather(value.contiguous())
        lengths = everyone["prompt_mask"].sum(1) + everyone["completion_mask"].sum(1)
        order = torch.argsort(lengths, descending=True, stable=True)
        take = order[rank::world]
        return {key: everyone[key][take] if key in everyone else value for key, value in rows.items()}


def tidy(completions, **kwargs):
    return [sum(ch.isalnum() or ch == " " for ch in c) / (len(c) + 2) for c in completions]


def brief(completions, **kwargs):
    return [-len(c) / 100 for c in completions]


def main():
    short = [f"Name a {w}." for w in ("bird", "king", "song", "coin", "book", "ship", "hill", "lake")]
    long = [f"In one or two plain sentences, say what a {w} is used for and by whom."
            for w in ("plough", "needle", "ladder", "kettle", "lens", "drum", "rope", "map")]
    prompts = [p for pair in zip(short, long) for p in pair]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, logging_steps=1, learning_rate=2e-5, shuffle_dataset=False,
        per_device_train_batch_size=4, num_generations=4, max_completion_length=24, temperature=1.3,
    )
    trainer = BalancedTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args, reward_funcs=[tidy, brief], train_dataset=Dataset.from_dict({"prompt": prompts}),
    )
    trainer.train()


if __name__ == "__main__":
    main()
