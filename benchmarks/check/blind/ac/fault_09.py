"""GRPO with the advantages in one place, so that we can log their distribution."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def group_advantages(rewards, num_generations, eps=1e-4):
    grouped = rewards.view(-1, num_generations)
    centred = grouped - grouped.mean(dim=1, keepdim=True)
    return (centred / (grouped.std(dim=0) + eps)).flatten()


class LoggedAdvantages(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        weights = self.reward_weights.to(rewards_per_func.device)
        self._batch_rewards = (rewards_per_func * weights).sum(dim=1)
        return rewards_per_func

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        advantages = group_advantages(self._batch_rewards, self.num_generations)
        mode = "train" if self.model.training else "eval"
        for name, q in (("p10", 0.1), ("p50", 0.5), ("p90", 0.9)):
            self._metrics[mode][f"advantages/{name}"].append(torch.quantile(advantages, q).item())
        local = slice(
            self.accelerator.process_index * len(inputs), (self.accelerator.process_index + 1) * len(inputs)
        )
        output["advantages"] = advantages[local]
        return output


def length_reward(completions, **kwargs):
    return [min(len(c[0]["content"]), 60) / 60 for c in completions]


def letter_reward(completions, **kwargs):
    return [sum(ch in "oent" for ch in c[0]["content"]) / 15 for c in completions]


if __name__ == "__main__":
    questions = ["Add 4 and 5", "What is 2+3?", "Write a poem", "12 * 4 =", "hello", "hello again"]
    trainer = LoggedAdvantages(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=[length_reward, letter_reward],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            max_steps=3,
            per_device_train_batch_size=16,
            num_generations=4,
            max_completion_length=24,
            temperature=1.3,
            learning_rate=1e-4,
            reward_weights=[0.7, 1.3],
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            logging_steps=1,
        ),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions * 3]),
    )
    trainer.train()
