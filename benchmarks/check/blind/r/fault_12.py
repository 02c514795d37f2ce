"""Word-choice training with small memory: caches and buffers are released between micro-batches.

Without the callback the run is killed on our smallest machines when the completions get long.
"""

import gc
import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ReleaseMemory(TrainerCallback):
    """Frees what the last micro-batch left behind before the next one starts."""

    def __init__(self):
        self.calls = 0

    def _release(self, model):
        model.zero_grad(set_to_none=True)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.calls += 1

    def on_substep_end(self, args, state, control, model=None, **kwargs):
        self._release(model)

    def on_epoch_end(self, args, state, control, model=None, **kwargs):
        self._release(model)


GOOD = set("etaoinshr")


def common_letters(completions, **kwargs):
    rewards = []
    for completion in completions:
        text = completion[0]["content"].lower()
        rewards.append(sum(c in GOOD for c in text) / max(len(text), 1))
    return rewards


def ends_early(completion_ids, **kwargs):
    return [0.3 if len(ids) < 16 else 0.0 for ids in completion_ids]


def main():
    subjects = ["the sun", "a clock", "my shoe", "the wall", "a song", "the lamp", "a stair", "the soup",
                "a nail", "the coat", "a drum", "the path"]
    dataset = Dataset.from_dict({
        "prompt": [[{"role": "user", "content": f"One word for {subject}?"}] for subject in subjects],
    })
    release = ReleaseMemory()
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[common_letters, ends_early],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(prefix="words-"), use_cpu=True, report_to=[], save_strategy="no",
            per_device_train_batch_size=4, gradient_accumulation_steps=3, num_generations=4,
            max_completion_length=16, learning_rate=3e-4, max_steps=3, logging_steps=1,
        ),
        train_dataset=dataset,
        callbacks=[release],
    )
    trainer.train()
    print("released", release.calls, "times")


if __name__ == "__main__":
    main()
