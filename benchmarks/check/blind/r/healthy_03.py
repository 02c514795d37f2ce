"""Weight-decomposed LoRA with a KL term, two updates per generation and asymmetric clipping.

The reference log-probabilities come from the base model with the adapter switched off.
"""

import os
import tempfile

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

PROVERBS = [
    "A stitch in time", "Too many cooks", "The early bird", "Still waters", "A rolling stone",
    "All that glitters", "Better late", "Out of sight", "Practice makes", "When in doubt",
]


def wordiness(completions, **kwargs):
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        rewards.append(min(len(text.split()), 6) / 6)
    return rewards


def alphabet(completions, **kwargs):
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        rewards.append(sum(c.isalpha() or c.isspace() for c in text) / max(len(text), 1))
    return rewards


def main():
    dataset = Dataset.from_dict({
        "prompt": [[{"role": "user", "content": f"Finish the proverb: {start}"}] for start in PROVERBS],
    })
    adapter = LoraConfig(
        r=4,
        lora_alpha=8,
        lora_dropout=0.05,
        use_dora=True,
        use_rslora=True,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj"],
        task_type="CAUSAL_LM",
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="dora-"),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        loss_type="grpo",
        beta=0.05,
        num_iterations=2,
        epsilon=0.2,
        epsilon_high=0.28,
        delta=1.5,
        gradient_checkpointing=True,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=20,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        max_steps=3,
        logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[wordiness, alphabet],
        args=args,
        train_dataset=dataset,
        peft_config=adapter,
    )
    trainer.model.print_trainable_parameters()
    trainer.train()


if __name__ == "__main__":
    main()
