"""Group statistics from reduced sums: no rank holds the rewards of the whole batch."""
import os
import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class ReducedStatsTrainer(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        table = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        first = self.accelerator.process_index * len(prompts)
        weights = self.reward_weights.to(table.device)
        self.local_rewards = table[first : first + len(prompts)] @ weights
        return table

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        rewards = self.local_rewards.double()
        rows, world = rewards.numel(), self.accelerator.num_processes
        row = torch.arange(rows, device=rewards.device) + self.accelerator.process_index * rows
        group = row // self.num_generations
        n_groups = rows * world // self.num_generations
        total = rewards.new_zeros(n_groups).index_add_(0, group, rewards)
        dist.all_reduce(total)
        centred = rewards - (total / self.num_generations)[group]
        squares = rewards.new_zeros(n_groups).index_add_(0, group, centred**2)
        dist.all_reduce(squares)
        std = (squares / (self.num_generations - 1)).sqrt()
        batch["advantages"] = (centred / (std[group] + 1e-4)).float()
        return batch


def vowels(completions, **kwargs):
    return [sum(ch in "aeiou" for ch in c[0]["content"]) / (1 + len(c[0]["content"])) for c in completions]


def cap(completion_ids, **kwargs):
    return [min(len(ids), 12) / 12 for ids in completion_ids]


def main():
    data = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Name {n} things that are {c}."}]}
         for n in (2, 3, 5) for c in ("blue", "round", "made of tin")]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=6,
        num_generations=4,
        max_completion_length=20,
        learning_rate=1e-4,
        reward_weights=[1.0, 0.4],
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        seed=34,
    )
    ReducedStatsTrainer(
        model=os.path.join(HERE, "tiny"), args=args, reward_funcs=[vowels, cap], train_dataset=data
    ).train()


if __name__ == "__main__":
    main()
