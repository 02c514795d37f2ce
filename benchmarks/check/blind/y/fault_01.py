"""GRPO on short word-list prompts; rewards are scored in a thread pool and gathered once."""
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
TOPICS = ["fruits", "rivers", "colours", "tools", "birds", "cities", "metals", "games",
          "trees", "fish", "planets", "spices", "fabrics", "dances", "rocks", "clouds"]


def variety(prompts, completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [len(set(t)) / (len(t) + 4) for t in texts]


def brevity(prompts, completions, **kwargs):
    return [-0.02 * len(c[0]["content"]) for c in completions]


class PooledRewardTrainer(GRPOTrainer):
    """Scores all reward functions side by side, with a single collective for the whole matrix."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._pool = ThreadPoolExecutor(max_workers=4)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        columns = {k: [row[k] for row in inputs] for k in inputs[0] if k != "prompt"}
        jobs = [
            self._pool.submit(f, prompts=prompts, completions=completions,
                              completion_ids=completion_ids_list, **columns)
            for f in self.reward_funcs
        ]
        local = torch.tensor([job.result() for job in jobs], dtype=torch.float32).T.contiguous()
        if self.accelerator.num_processes == 1:
            return local
        parts = [torch.empty_like(local) for _ in range(self.accelerator.num_processes)]
        dist.all_gather(parts, local)
        return torch.stack(parts, dim=1).reshape(-1, local.size(1))


def main():
    rows = [{"prompt": [{"role": "user", "content": f"Name three {t}."}]} for t in TOPICS]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, logging_steps=1, learning_rate=5e-5, seed=11,
        per_device_train_batch_size=4, num_generations=4, max_completion_length=24, temperature=1.3,
        reward_weights=[1.0, 0.5],
    )
    trainer = PooledRewardTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        reward_funcs=[variety, brevity], args=args, train_dataset=Dataset.from_list(rows),
    )
    trainer.train()


if __name__ == "__main__":
    main()
