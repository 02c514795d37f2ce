"""Short rhymes: rewards for length and letters, with padding kept out of the loss.

Our tokenizers have no padding token of their own, so the end-of-turn token pads the batch, as in
our SFT runs.
"""

import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

LINES = [
    "Roses are red", "The cat sat down", "Over the hill", "I saw a ship", "Down by the lake",
    "The moon is high", "A bird in spring", "Cold was the wind", "We went to sea", "He had a drum",
]


class PaddingSafeTrainer(GRPOTrainer):
    """Takes the completion mask from the token ids, so that no padding position enters the loss."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        mask = (batch["completion_ids"] != self.processing_class.pad_token_id).long()
        batch["completion_mask"] = mask
        batch["num_items_in_batch"] = self.accelerator.gather(mask.sum()).sum()
        return batch


def letters(completions, **kwargs):
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        rewards.append(sum(c.isalpha() or c == " " for c in text) / max(len(text), 1))
    return rewards


def short(completions, **kwargs):
    return [max(0.0, 1.0 - len(completion[0]["content"]) / 80) for completion in completions]


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    dataset = Dataset.from_dict({
        "prompt": [[{"role": "user", "content": f"Continue the rhyme: {line}"}] for line in LINES],
    })
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="rhymes-"), use_cpu=True, report_to=[], save_strategy="no",
        per_device_train_batch_size=8, gradient_accumulation_steps=1, num_generations=4,
        max_completion_length=24, learning_rate=5e-4, max_steps=3, logging_steps=1, seed=11,
    )
    trainer = PaddingSafeTrainer(
        model=MODEL, processing_class=tokenizer, reward_funcs=[letters, short], args=args, train_dataset=dataset
    )
    trainer.train()


if __name__ == "__main__":
    main()
