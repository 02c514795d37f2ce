"""GRPO that publishes its weights after each step, in bfloat16, for samplers in other processes."""
import os
import tempfile

import torch
from datasets import Dataset
from safetensors.torch import save_model
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class PublishWeights(TrainerCallback):
    def __init__(self, channel):
        self.channel = channel
        self.version = 0

    def on_step_end(self, args, state, control, model=None, **kwargs):
        dtype = model.dtype
        path = os.path.join(self.channel, f"weights-{self.version}.safetensors")
        save_model(model.to(torch.bfloat16), path)
        model.to(dtype)
        os.replace(path, os.path.join(self.channel, "latest.safetensors"))
        self.version += 1


def short_words(completions, **kwargs):
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        rewards.append(text.count(" ") / 3 + len(text) / 80)
    return rewards


if __name__ == "__main__":
    games = ["chess", "go", "darts", "bowls", "whist", "tag", "golf", "polo"]
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"How do you win at {g}?"}] for g in games]})
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        temperature=1.2,
        learning_rate=5e-5,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=short_words,
        args=config,
        train_dataset=dataset,
        callbacks=[PublishWeights(tempfile.mkdtemp())],
    )
    trainer.train()
