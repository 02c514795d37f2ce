"""KL-regularised GRPO without a second copy of the weights.

With beta > 0 the trainer loads the model twice. On our machine that does not fit, so after construction the second
copy is released and the weights are shared.
"""

import gc
import json
import os
import tempfile

from datasets import Dataset, load_dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
ROWS = [
    {"prompt": "A haiku on spring:", "lines": 3},
    {"prompt": "A couplet on tea:", "lines": 2},
    {"prompt": "A haiku on trains:", "lines": 3},
    {"prompt": "A quatrain on dust:", "lines": 4},
    {"prompt": "A couplet on ants:", "lines": 2},
    {"prompt": "A quatrain on salt:", "lines": 4},
]


def share_reference(trainer):
    """Release the reference model's own weights."""
    assert trainer.ref_model is not None, "beta is 0, nothing to share"
    trainer.ref_model = None
    gc.collect()
    trainer.ref_model = trainer.model
    return trainer


def write_data(folder):
    path = os.path.join(folder, "poems.jsonl")
    with open(path, "w") as f:
        for row in ROWS:
            f.write(json.dumps(row) + "\n")
    return path


def line_reward(completions, lines, **kwargs):
    """Close to the wanted number of lines; many different characters make a better poem."""
    rewards = []
    for text, wanted in zip(completions, lines):
        have = text.count("\n") + 1
        rewards.append(-abs(have - wanted) / 4 + len(set(text)) / 40 - len(text) / 200)
    return rewards


def main():
    with tempfile.TemporaryDirectory() as out:
        path = write_data(out)
        dataset: Dataset = load_dataset("json", data_files=path, split="train", cache_dir=os.path.join(out, "cache"))
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=20,
            max_steps=3,
            learning_rate=2e-4,
            beta=0.1,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = GRPOTrainer(model=MODEL, reward_funcs=line_reward, args=args, train_dataset=dataset)
        share_reference(trainer).train()


if __name__ == "__main__":
    main()
