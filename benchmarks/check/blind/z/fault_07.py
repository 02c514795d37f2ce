import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LoggedAdvantages(GRPOTrainer):
    """Computes the group-normalised advantages here, so that we can log the spread of every group."""

    def _calculate_rewards(self, *args, **kwargs):
        self._rewards_per_func = super()._calculate_rewards(*args, **kwargs)
        return self._rewards_per_func

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        weights = self.reward_weights.to(self._rewards_per_func.device)
        rewards = (self._rewards_per_func * weights).nansum(dim=1)
        size = self.num_generations
        grouped = rewards.view(-1, size)
        mean = grouped.mean(dim=1).repeat_interleave(size)
        std = grouped.std(dim=1).repeat(size)
        output["advantages"] = (rewards - mean) / (std + 1e-4)
        self._metrics["train"]["group_std/max"].append(grouped.std(dim=1).max().item())
        self._metrics["train"]["group_std/min"].append(grouped.std(dim=1).min().item())
        return output


def vowels(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(t.count(v) for v in "aeiou") for t in texts]


def spaces(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [t.count(" ") / max(1, len(t)) for t in texts]


def main():
    topics = ["rain", "snow", "bread", "music", "ships", "clocks", "paper", "glass"]
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Write about {t}."}] for t in topics]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=4e-05,
        num_generations=4,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_completion_length=24,
        reward_weights=[0.2, 1.0],
        save_strategy='no',
    )
    trainer = LoggedAdvantages(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=[vowels, spaces],
        args=args,
        train_dataset=data,
    )
    trainer.train()


if __name__ == "__main__":
    main()
