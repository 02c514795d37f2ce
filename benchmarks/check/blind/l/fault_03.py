"""GRPO with the group statistics done in float64 (our rewards come as sums of many small terms)."""
import os
import tempfile
from dataclasses import dataclass

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

BASE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


@dataclass
class TaskConfig:
    n_terms: int = 5
    per_step_prompts: int = 4
    group: int = 4


class DoublePrecisionGroups(GRPOTrainer):
    """Computes (r - mean) / (std + eps) in float64; float32 loses digits when rewards are nearly equal."""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._last_rewards = rewards.detach().double()
        return rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        group = self.num_generations if self.model.training else self.num_generations_eval
        weights = self.reward_weights.to(self._last_rewards)
        total = (self._last_rewards * weights).nansum(dim=1)
        grouped = total.view(group, -1)
        mean = grouped.mean(dim=0, keepdim=True)
        std = grouped.std(dim=0, keepdim=True)
        advantages = ((grouped - mean) / (std + 1e-4)).reshape(-1)
        rank, rows = self.accelerator.process_index, len(inputs)
        output["advantages"] = advantages[rank * rows : (rank + 1) * rows].to(output["advantages"])
        return output


def terms_reward(completions, completion_ids, **kwargs):
    out = []
    for text, ids in zip(completions, completion_ids):
        terms = [
            0.1 * min(len(ids), 16) / 16,
            0.2 * len(set(ids)) / max(len(ids), 1),
            0.3 * sum(ch.isdigit() for ch in text) / max(len(text), 1),
            0.1 * (len(text) % 7) / 7,
            0.05 * text.count("4"),
        ]
        out.append(sum(terms))
    return out


def ends_properly(completion_ids, eos_id=258, **kwargs):
    return [0.25 if ids and ids[-1] == eos_id else 0.0 for ids in completion_ids]


def main():
    task = TaskConfig()
    tokenizer = AutoTokenizer.from_pretrained(BASE, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    chats = [[{"role": "user", "content": c}] for c in
             ("List the primes.", "Spell banana backwards.", "Name three rivers in Europe.", "What comes after Monday?",
              "Sum 14 and 15.", "Say hi.", "Give a synonym of fast.", "Count down from 5.")]
    texts = [tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in chats]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=task.per_step_prompts * task.group,
        num_generations=task.group,
        max_completion_length=20,
        max_steps=4,
        learning_rate=3e-4,
        beta=0.0,
        reward_weights=[1.0, 0.5],
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=5,
    )
    trainer = DoublePrecisionGroups(
        model=model,
        reward_funcs=[terms_reward, ends_properly],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": texts}),
        processing_class=tokenizer,
    )
    trainer.train()


if __name__ == "__main__":
    main()
