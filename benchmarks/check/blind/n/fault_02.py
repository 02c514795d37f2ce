"""GRPO with a cap on prompt length, for data with a long tail."""
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
MAX_PROMPT_LENGTH = 24

people = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]
things = ["apples", "books", "cards", "eggs", "pens", "shells", "stamps", "toys"]


def make_row(i):
    boxes, each = 10 + i, 14 - i % 3
    question = f"{people[i]} has {boxes} boxes with {each} {things[i]} each."
    if i % 2:
        question += f" Each costs {2 + i} coins. No tax is due. How many coins do they cost together?"
    else:
        question += f" How many {things[i]} does {people[i]} have?"
    return {
        "prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": question},
        ]
    }


class CappedPromptTrainer(GRPOTrainer):
    """TRL removed `max_prompt_length`; this brings it back."""

    def __init__(self, *args, max_prompt_length=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.max_prompt_length = max_prompt_length

    def _tokenize_prompts(self, prompts):
        prompt_ids, images, multimodal_fields = super()._tokenize_prompts(prompts)
        if self.max_prompt_length is not None:
            too_long = sum(len(ids) > self.max_prompt_length for ids in prompt_ids)
            self._metrics["train"]["prompts/truncated"].append(too_long / len(prompt_ids))
            prompt_ids = [ids[: self.max_prompt_length] for ids in prompt_ids]
        return prompt_ids, images, multimodal_fields


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / 10 for c in completions]


def length(completion_ids, **kwargs):
    return [len(ids) / 16 for ids in completion_ids]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=16,
    learning_rate=5e-5,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to=[],
)

trainer = CappedPromptTrainer(
    model=MODEL,
    reward_funcs=[digits, length],
    args=args,
    train_dataset=Dataset.from_list([make_row(i) for i in range(8)]),
    max_prompt_length=MAX_PROMPT_LENGTH,
)
trainer.train()
