"""Clean-text training with two rewards: one for readable content, one against leftover markup.

`content_reward` looks only at the text without tags, `markup_penalty` counts the tags.
"""

import os
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
TAG = re.compile(r"<[^<>\n]*>|</?[a-z_]+>?")

TOPICS = ["rain", "a market", "the sea", "a train", "two cats", "a long walk", "bread", "winter",
          "a garden", "the night", "a river", "music"]


def strip_markup(completions):
    for completion in completions:
        for message in completion:
            message["content"] = TAG.sub("", message["content"]).strip()
    return completions


def content_reward(completions, **kwargs):
    """Share of lower-case letters in the visible text, with a bonus for a few words."""
    rewards = []
    for completion in strip_markup(completions):
        text = completion[0]["content"]
        letters = sum(c.islower() for c in text) / max(len(text), 1)
        rewards.append(letters + 0.1 * min(len(text.split()), 5))
    return rewards


def markup_penalty(completions, **kwargs):
    """-0.2 for each tag that the model writes, at most -1."""
    rewards = []
    for completion in completions:
        tags = TAG.findall(completion[0]["content"])
        rewards.append(-min(0.2 * len(tags), 1.0))
    return rewards


def main():
    dataset = Dataset.from_dict({
        "prompt": [[{"role": "user", "content": f"Write one line about {topic}."}] for topic in TOPICS],
    })
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="clean-text-"),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        reward_weights=[1.0, 1.0],
        learning_rate=2e-4,
        max_steps=3,
        logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[content_reward, markup_penalty],
        args=args,
        train_dataset=dataset,
    )
    trainer.train()
    print([entry.get("rewards/markup_penalty/mean") for entry in trainer.state.log_history])


if __name__ == "__main__":
    main()
