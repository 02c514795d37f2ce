import os
import random
import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def contains_sum(completions, total, **kwargs):
    return [float(t in c[0]["content"]) for c, t in zip(completions, total)]


def not_repeating(completions, **kwargs):
    return [len(set(c[0]["content"])) / (len(c[0]["content"]) + 1) for c in completions]


class TimedRewardsTrainer(GRPOTrainer):
    """Calls the reward functions itself, so that one that raises costs its own column and not the run."""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        columns = {k: [row[k] for row in inputs] for k in inputs[0] if k != "prompt"}
        local = torch.full((len(prompts), len(self.reward_funcs)), float("nan"), device=self.accelerator.device)
        for i, function in enumerate(self.reward_funcs):
            try:
                values = function(
                    prompts=prompts, completions=completions, completion_ids=completion_ids_list, **columns
                )
            except (ValueError, KeyError) as error:
                print(f"{self.reward_func_names[i]} failed: {error}")
                continue
            local[:, i] = torch.tensor(values, dtype=torch.float32)
        gathered = [torch.empty_like(local) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, local)
        return torch.stack(gathered, dim=1).reshape(-1, len(self.reward_funcs))


def main():
    rng = random.Random(19)
    rows = []
    for _ in range(40):
        a, b, c = rng.randint(1, 20), rng.randint(1, 20), rng.randint(1, 20)
        rows.append(
            {"prompt": [{"role": "user", "content": f"Add {a}, {b} and {c}."}], "total": str(a + b + c)}
        )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=1e-4,
        reward_weights=[1.0, 0.3],
        loss_type="cispo",
        epsilon_high=5.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = TimedRewardsTrainer(
        model=MODEL,
        args=args,
        reward_funcs=[contains_sum, not_repeating],
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )
    trainer.train()


if __name__ == "__main__":
    main()
