import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

MAX_PROMPT = 48

STORIES = [
    "Ann walks to the market and buys three apples, two pears and a loaf of bread. Which fruit did she buy first?",
    "A train leaves at nine and arrives at eleven thirty after two short stops. How long was the journey in minutes?",
    "Tom has seven coins in the left pocket and nine in the right one. How many coins does he have in total?",
    "How many legs do two cats have?",
    "The library opens at ten, closes at six, and has a break of one hour at noon. How many hours is it open?",
    "Name a colour of the sky.",
]


class BudgetedTrainer(GRPOTrainer):
    """Keeps prompts within a token budget, since a few of our stories are much longer than the rest."""

    def __init__(self, *args, max_prompt_length=MAX_PROMPT, **kwargs):
        super().__init__(*args, **kwargs)
        self.max_prompt_length = max_prompt_length
        self.num_truncated = 0

    def _tokenize_prompts(self, prompts):
        prompt_ids, images, multimodal_fields = super()._tokenize_prompts(prompts)
        self.num_truncated += sum(len(ids) > self.max_prompt_length for ids in prompt_ids)
        prompt_ids = [list(ids[: self.max_prompt_length]) for ids in prompt_ids]
        return prompt_ids, images, multimodal_fields


def letter_e(completions, **kwargs):
    return [c[0]["content"].count("e") / (1 + len(c[0]["content"])) for c in completions]


def brevity(completions, completion_ids, **kwargs):
    return [1.0 - len(ids) / 24 for ids in completion_ids]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=3e-05,
        num_generations=4,
        per_device_train_batch_size=12,
        max_completion_length=24,
        reward_weights=[1.0, 0.3],
        save_strategy='no',
    )
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": s}] for s in STORIES]})
    trainer = BudgetedTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=[letter_e, brevity],
        args=args,
        train_dataset=data,
    )
    trainer.train()
    print("truncated prompts:", trainer.num_truncated)


if __name__ == "__main__":
    main()
