"""GRPO with micro-batches of similar length: the generation batch is sorted before it is split."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def reorder(batch, order):
    return {k: v[order] if torch.is_tensor(v) and v.dim() > 1 else v for k, v in batch.items()}


def trim_right(batch):
    width = int(batch["completion_mask"].sum(dim=1).max().clamp(min=1))
    return {
        k: v[:, :width] if k in ("completion_ids", "completion_mask", "old_per_token_logps") else v
        for k, v in batch.items()
    }


class SortedMicroBatches(GRPOTrainer):
    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        period = self.args.steps_per_generation * self.num_iterations
        if self._step % period == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            order = torch.argsort(batch["completion_mask"].sum(dim=1), descending=True, stable=True)
            batches = split_tensor_dict(reorder(batch, order), self.args.steps_per_generation)
            self._buffered_inputs = [trim_right(b) for b in batches]
        return self._buffered_inputs[self._step % self.args.steps_per_generation]


def soft_length(completions, **kwargs):
    return [1.0 - abs(len(c[0]["content"]) - 40) / 40 for c in completions]


def spaces(completions, **kwargs):
    return [min(c[0]["content"].count(" "), 6) / 6 for c in completions]


def main():
    questions = ["Add 4 and 5", "What is 2+3?", "Write a poem", "12 * 4 =", "hello", "Name 3 digits"]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=3,
        num_generations=4,
        max_completion_length=32,
        temperature=1.3,
        learning_rate=1e-4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = SortedMicroBatches(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=[soft_length, spaces],
        args=args,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions * 4]),
    )
    trainer.train()


if __name__ == "__main__":
    main()
