"""Dynamic sampling: a generation batch in which a group has equal rewards is drawn again, up to three times."""
import asyncio
import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
MEMO = {}


class DynamicSamplingTrainer(GRPOTrainer):
    max_draws = 3

    def _generate_and_score_completions(self, inputs):
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        best, best_useful, draws = None, -1, 0
        groups = len(inputs) // self.num_generations
        while draws < self.max_draws and best_useful < groups:
            batch = super()._generate_and_score_completions(inputs)
            draws += 1
            useful = int((batch["advantages"].view(groups, -1).abs().amax(1) > 1e-6).sum())
            if useful > best_useful:
                best, best_useful = batch, useful
        self._metrics["train"]["dynamic_sampling/draws"].append(draws)
        return best


async def remote_score(completions, **kwargs):
    async def one(text):
        await asyncio.sleep(0.001 * (len(text) % 5))
        return text.count("4") + 0.5 * text.count("8")

    return await asyncio.gather(*(one(c[0]["content"]) for c in completions))


def exact(completions, gold, kind, **kwargs):
    """Only for the problems that have a short answer; None elsewhere."""
    scores = []
    for completion, g, k in zip(completions, gold, kind):
        if k != "short":
            scores.append(None)
            continue
        key = (completion[0]["content"], g)
        if key not in MEMO:
            MEMO[key] = float(len(set(key[0]) & set(g)))
        scores.append(MEMO[key])
    return scores


if __name__ == "__main__":
    torch.manual_seed(0)
    rng = random.Random(9)
    rows = []
    for i in range(48):
        a, b = rng.randint(2, 9), rng.randint(10, 99)
        rows.append(
            {
                "prompt": [{"role": "user", "content": f"Cleo has {a} boxes with {b} pens each. How many pens does Cleo have?"}],
                "gold": str(a * b),
                "kind": "short" if i % 2 else "long",
            }
        )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, num_generations=4, max_completion_length=16,
        reward_weights=[1.0, 0.7], scale_rewards="batch", loss_type="dapo", epsilon_high=0.28,
        max_steps=4, learning_rate=5e-5, use_cpu=True, bf16=False, report_to=[], logging_steps=1, save_strategy="no",
    )
    DynamicSamplingTrainer(
        model=MODEL, reward_funcs=[remote_score, exact], args=args, train_dataset=Dataset.from_list(rows)
    ).train()
