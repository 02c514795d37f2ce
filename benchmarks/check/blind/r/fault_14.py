"""Sentence training with gradient norms per part of the network in the log.

The norms of embedding, layers and head tell which part moves most early in the run.
"""

import os
import tempfile
from collections import defaultdict

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class GradientNorms(TrainerCallback):
    """Records the gradient norm of each part of the network before the optimizer step."""

    def __init__(self, limit=0.05):
        self.limit = limit
        self.history = defaultdict(list)
        self.large = defaultdict(int)

    @staticmethod
    def parts(model):
        yield "embedding", model.get_input_embeddings()
        for number, layer in enumerate(model.model.layers):
            yield f"layer {number}", layer
        yield "head", model.get_output_embeddings()

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        for name, part in self.parts(model):
            norm = torch.nn.utils.clip_grad_norm_(part.parameters(), self.limit)
            self.history[name].append(norm.item())
            self.large[name] += int(norm > self.limit)

    def on_train_end(self, args, state, control, **kwargs):
        for name, norms in self.history.items():
            print(f"{name:10s}", " ".join(f"{norm:.4f}" for norm in norms), f"({self.large[name]} large)")


def sentence_reward(completions, **kwargs):
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        score = 0.4 * text[:1].isupper() + 0.4 * text.rstrip().endswith(".")
        score += sum(c.isalpha() for c in text) / max(len(text), 1)
        rewards.append(score - 0.004 * len(text))
    return rewards


def main():
    things = ["a wooden boat", "the old bridge", "a red kite", "the long road", "a quiet street",
              "the first snow", "a broken cup", "the last train"]
    dataset = Dataset.from_dict({
        "prompt": [[{"role": "user", "content": f"Write a sentence about {thing}."}] for thing in things],
    })
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=sentence_reward,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(prefix="sentences-"), use_cpu=True, report_to=[], save_strategy="no",
            per_device_train_batch_size=8, num_generations=4, max_completion_length=20, max_grad_norm=1.0,
            optim="sgd", learning_rate=0.2, max_steps=3, logging_steps=1,
        ),
        train_dataset=dataset,
        callbacks=[GradientNorms()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
