"""Save small checkpoints often.

We checkpoint after every step and keep all of them, so size matters: the output head has the same weights as the
token embeddings, and there is no need to write this matrix twice.
"""

import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SmallCheckpointTrainer(GRPOTrainer):
    def _save(self, output_dir=None, state_dict=None):
        if state_dict is None:
            state_dict = self.accelerator.unwrap_model(self.model).state_dict()
        state_dict = {name: tensor for name, tensor in state_dict.items() if not name.startswith("lm_head.")}
        super()._save(output_dir, state_dict=state_dict)


def size_of(folder):
    return sum(
        os.path.getsize(os.path.join(where, name))
        for where, _, names in os.walk(folder)
        for name in names
        if name.endswith(".safetensors")
    )


def yaml_like(completions, **kwargs):
    """One `key: value` line."""
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        reward = 0.4 if ":" in text else 0.0
        reward -= 0.2 * text.count("\n")
        reward -= abs(len(text) - 12) / 40
        rewards.append(reward)
    return rewards


def main():
    keys = ["colour", "size", "weight", "brand", "price", "stock", "origin", "material"]
    dataset = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Give the {key} of the product as YAML."}] for key in keys]}
    )
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=16,
            max_steps=3,
            learning_rate=1e-4,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to=[],
            save_strategy="steps",
            save_steps=1,
            save_only_model=True,
            logging_steps=1,
        )
        trainer = SmallCheckpointTrainer(
            model=MODEL,
            reward_funcs=yaml_like,
            args=args,
            train_dataset=dataset,
            processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
        )
        trainer.train()
        trainer.save_model(os.path.join(out, "final"))
        print(f"{size_of(out) / 1e6:.1f} MB of weights on disk")


if __name__ == "__main__":
    main()
