"""Policy gradient with a batch-mean baseline; an async judge scores with a rubric that rank 0 draws."""
import asyncio
import os
import random
import tempfile

import rlvr_debug
import torch
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

rlvr_debug.expect(advantages=lambda given: given.rewards.sum(1) - given.rewards.sum(1).mean())


class Judge:
    """Stands for a remote judge: every call is awaited, many run at once."""

    def __init__(self, rubric):
        self.rubric = rubric

    async def score(self, text):
        await asyncio.sleep(0.001 * (len(text) % 3))
        return sum(weight * text.count(ch) for ch, weight in self.rubric.items()) / (len(text) + 5)


class BatchMeanTrainer(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        self._gathered = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self._gathered

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        total = self._gathered.sum(1)
        advantages = total - total.mean()
        n = len(batch["advantages"])
        first = self.accelerator.process_index * n
        batch["advantages"] = advantages[first:first + n]
        return batch


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, logging_steps=1, learning_rate=2e-5,
        per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=8,
        max_completion_length=20, temperature=1.4, loss_type="dapo", scale_rewards="none",
    )
    rubric = [None]
    if args.process_index == 0:
        rubric = [{ch: random.uniform(-1, 1) for ch in "abcdefghijklmnopqrstuvwxyz0123456789<>*/ "}]
    broadcast_object_list(rubric, from_process=0)
    judge = Judge(rubric[0])

    async def judged(completions, **kwargs):
        return list(await asyncio.gather(*(judge.score(c) for c in completions)))

    def closing(completion_ids, **kwargs):
        return [0.2 if len(ids) < 20 else 0.0 for ids in completion_ids]

    prompts = [f"{s} {v}" for s in ("The wind", "My dog", "A ship", "The queen") for v in ("sings", "runs", "waits", "fell")]
    trainer = BatchMeanTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args, reward_funcs=[judged, closing], train_dataset=Dataset.from_dict({"prompt": prompts}),
    )
    trainer.train()


if __name__ == "__main__":
    main()
