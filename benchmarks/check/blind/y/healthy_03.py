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
                    value, dim=1, pad_index=pad_id if key.endswith("_ids") else 0,
                    pad_first=key.startswith("prompt_"),
                )
            everyone[key] = self.accelerator.gather(value.contiguous())
        lengths = everyone["prompt_mask"].sum(1) + everyone["completion_mask"].sum(1)
        order = torch.argsort(lengths, descending=True, stable=True)
        take = order[rank::world]
        return {key: everyone[key][take] if key in everyone else value for key, value in rows.items()}


def distinct(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [len(set(t)) / 8 - len(t) / 50 for t in texts]


def main():
    questions = []
    for i in range(1, 13):
        questions.append(f"{i} + {i}?")
        questions.append(f"A farmer has {i} hens and buys {i} more at the market. How many hens has the farmer now?")
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=4, logging_steps=1, learning_rate=3e-5, seed=13,
        per_device_train_batch_size=4, gradient_accumulation_steps=2, steps_per_generation=2, num_iterations=2,
        num_generations=4, max_completion_length=24, temperature=1.2, beta=0.05, loss_type="grpo",
    )
    trainer = BalancedTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args,
        reward_funcs=distinct,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions]),
    )
    trainer.train()


if __name__ == "__main__":
    main()
