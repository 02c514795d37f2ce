"""KL-regularized GRPO on a shared machine with little memory.

The reference model would take as much memory as the policy, and it starts from the same
checkpoint, so only one copy of the weights is kept.
"""

import gc
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

CITIES = ["a harbour town", "a mountain village", "an old city", "a desert camp", "an island", "a valley",
          "a border post", "a mining town"]


def share_reference(trainer):
    """Lets the reference log-probabilities come from the weights that are in memory already."""
    trainer.ref_model = trainer.model
    gc.collect()


def punctuation(completions, **kwargs):
    marks = ".,;:!?"
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        rewards.append(1.0 - 4 * sum(c in marks or c in "<>{}" for c in text) / max(len(text), 1))
    return rewards


def length(completion_ids, **kwargs):
    return [min(len(ids), 12) / 12 for ids in completion_ids]


def main():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    prompts = [[{"role": "user", "content": f"Describe {city}."}] for city in CITIES]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="kl-"),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        beta=0.1,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=20,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        max_steps=3,
        logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[punctuation, length],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
    )
    share_reference(trainer)
    trainer.train()


if __name__ == "__main__":
    main()
