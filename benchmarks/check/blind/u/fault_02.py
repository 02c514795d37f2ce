"""Word problems with a budget for the prompt.

TRL dropped `max_prompt_length`. This trainer brings it back: the newest part of a prompt matters most (the question
and the assistant header), so a prompt over budget keeps its last tokens and loses the beginning of the story.
"""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
NAMES = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]


def story(i):
    intro = "" if i % 3 else f"It was a long day at the market and {NAMES[i % 8]} had been there since the morning. "
    return f"{intro}{NAMES[i % 8]} has {i + 2} boxes with {i % 5 + 2} apples each. How many apples?"


def dataset():
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": story(i)}], "target": (i + 2) * (i % 5 + 2)}
            for i in range(40)
        ]
    )


class BudgetedPromptTrainer(GRPOTrainer):
    max_prompt_length = 64

    def _tokenize_prompts(self, prompts):
        prompt_ids, images, fields = super()._tokenize_prompts(prompts)
        over = sum(len(ids) > self.max_prompt_length for ids in prompt_ids)
        if over:
            prompt_ids = [list(ids)[: self.max_prompt_length] for ids in prompt_ids]
        self._metrics["train"]["prompts/over_budget"].append(over / len(prompt_ids))
        return prompt_ids, images, fields


def answer_reward(completions, target, **kwargs):
    return [1.0 if str(t) in c[0]["content"] else 0.0 for c, t in zip(completions, target)]


def brevity_reward(completion_ids, **kwargs):
    return [1.0 - len(ids) / 20 for ids in completion_ids]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
    per_device_train_batch_size=16, num_generations=4, max_completion_length=20, learning_rate=5e-5,
    reward_weights=[1.0, 0.5], logging_steps=1,
)
trainer = BudgetedPromptTrainer(
    model=TINY, reward_funcs=[answer_reward, brevity_reward], args=args, train_dataset=dataset()
)
trainer.train()
