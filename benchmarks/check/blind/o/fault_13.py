"""Rollout buffer with CPU off-loading: the generation batch is kept as slices and brought back one at a time."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class RolloutBuffer:
    def __init__(self, batch, slices, shuffle=True):
        rows = batch["completion_ids"].size(0)
        order = torch.randperm(rows) if shuffle else torch.arange(rows)
        self.parts = [self._take(batch, index) for index in order.chunk(slices)]

    @staticmethod
    def _take(batch, index):
        part = {}
        for key, value in batch.items():
            if torch.is_tensor(value) and value.dim() > 0:
                part[key] = value[index].cpu()
            else:
                part[key] = value
        return part

    def get(self, i, device):
        part = self.parts[i % len(self.parts)]
        return {k: v.to(device) if torch.is_tensor(v) else v for k, v in part.items()}


class BufferedTrainer(GRPOTrainer):
    buffer = None

    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return self._generate_and_score_completions(generation_batch)
        refresh_every = self.args.steps_per_generation * self.num_iterations
        if self._step % refresh_every == 0 or self.buffer is None:
            batch = self._generate_and_score_completions(generation_batch)
            self.buffer = RolloutBuffer(batch, self.args.steps_per_generation)
        return self.buffer.get(self.state.global_step, self.accelerator.device)


def score(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [0.3 * t.count("*") - 0.1 * t.count("4") for t in texts]


def main():
    rng = random.Random(31)
    rows = [
        {
            "prompt": [
                {
                    "role": "user",
                    "content": f"Ada has {rng.randint(2, 9)} boxes with {rng.randint(10, 99)} {thing} each. How many {thing} does Ada have?",
                }
            ]
        }
        for thing in ["apples", "eggs", "cards", "toys"] * 12
    ]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        loss_type="bnpo",
        max_steps=4,
        learning_rate=1e-4,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    BufferedTrainer(model=MODEL, reward_funcs=score, args=args, train_dataset=Dataset.from_list(rows)).train()


if __name__ == "__main__":
    main()
