"""GRPO with contiguous attention masks.

Our attention kernel wants masks that are one block of ones per row. The masks are rebuilt from the row lengths
before each forward pass of the loss.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

QUESTIONS = [
    "Why?",
    "What is the name of the tallest tree in the garden behind the house?",
    "Who came?",
    "How many people were at the table when the soup was served?",
    "Where to?",
    "Which of the roads leads to the harbour and which to the mill?",
    "When?",
    "What would you like to eat on a cold evening in the mountains?",
    "And then?",
    "Could you tell me how the story of the two brothers ends?",
]


def block_mask(attention_mask):
    """One block of ones per row, as long as the row has tokens."""
    lengths = attention_mask.sum(dim=1, keepdim=True)
    positions = torch.arange(attention_mask.size(1), device=attention_mask.device).unsqueeze(0)
    return (positions < lengths).to(attention_mask.dtype)


class BlockMaskTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, *args, **kwargs):
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, block_mask(attention_mask), logits_to_keep, *args, **kwargs
        )


def calm_reward(completions, **kwargs):
    """No capitals, no brackets, not too long."""
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        loud = sum(c.isupper() or c in "{}<>[]!" for c in text)
        rewards.append(1.0 - loud / max(len(text), 1) - 0.004 * len(text))
    return rewards


if __name__ == "__main__":
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in QUESTIONS]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=20,
        learning_rate=3e-4,
        max_steps=3,
        logging_steps=1,
    )
    trainer = BlockMaskTrainer(model=MODEL, reward_funcs=calm_reward, args=args, train_dataset=dataset)
    trainer.train()
