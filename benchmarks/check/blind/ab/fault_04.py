"""Per-prompt baselines kept by name, so that the table of baselines can be logged."""
import os
import tempfile
from collections import defaultdict

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


def vowels(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch in "aeiou" for ch in t) / (len(t) + 1) for t in texts]


def span(completion_ids, **kwargs):
    return [len(ids) / 20 for ids in completion_ids]


class BaselineTrainer(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        table = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        weighted = (table * self.reward_weights.to(table.device)).sum(dim=1)
        start = self.accelerator.process_index * len(prompts)
        self.row_rewards = weighted[start : start + len(prompts)]
        return table

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        rows = defaultdict(list)
        for i, example in enumerate(inputs):
            rows[example["prompt"][-1]["content"]].append(i)
        advantages = torch.zeros_like(self.row_rewards)
        self.baselines = {}
        for prompt, index in rows.items():
            group = self.row_rewards[index]
            self.baselines[prompt] = group.mean().item()
            advantages[index] = (group - group.mean()) / (group.std() + 1e-4)
        batch["advantages"] = advantages
        return batch


def main():
    towns = ["Oslo", "Lima", "Kyoto", "Accra", "Turin", "Quito", "Perth", "Basel", "Hue"]
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Describe {t} to a visitor."}] for t in towns], "town": towns}
    )
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=6,
        num_generations=4,
        max_completion_length=20,
        learning_rate=3e-5,
        reward_weights=[1.0, 0.5],
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        seed=21,
    )
    trainer = BaselineTrainer(
        model=os.path.join(HERE, "tiny"), args=config, reward_funcs=[vowels, span], train_dataset=data
    )
    trainer.train()


if __name__ == "__main__":
    main()
