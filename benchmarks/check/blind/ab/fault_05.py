"""Rewards are scored per rank in a thread pool and put together here."""
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def letters_a_to_m(completions, **kwargs):
    return [sum("a" <= ch <= "m" for ch in c[0]["content"]) / (1 + len(c[0]["content"])) for c in completions]


def near_ten(completion_ids, target, **kwargs):
    return [-abs(len(ids) - t) / 20 for ids, t in zip(completion_ids, target)]


class PooledRewardTrainer(GRPOTrainer):
    pool = ThreadPoolExecutor(2)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        columns = {key: [row[key] for row in inputs] for key in inputs[0] if key != "prompt"}
        jobs = [
            self.pool.submit(
                func, prompts=prompts, completions=completions, completion_ids=completion_ids_list, **columns
            )
            for func in self.reward_funcs
        ]
        local = torch.tensor([job.result() for job in jobs], dtype=torch.float32).T.contiguous()
        local = local.to(self.accelerator.device)
        parts = [torch.empty_like(local) for _ in range(self.accelerator.num_processes)]
        dist.all_gather(parts, local)
        return torch.stack(parts, dim=1).reshape(-1, local.size(1))


def load():
    rows = []
    for i, word in enumerate(["anchor", "birch", "candle", "dune", "ember", "ferry", "glacier", "harp"]):
        rows.append({"prompt": [{"role": "user", "content": f"Use the word {word} in a line."}], "target": 6 + i})
    return Dataset.from_list(rows)


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=20,
        learning_rate=1e-4,
        scale_rewards="group",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        seed=8,
    )
    trainer = PooledRewardTrainer(
        model=MODEL, args=args, reward_funcs=[letters_a_to_m, near_ten], train_dataset=load()
    )
    trainer.train()
