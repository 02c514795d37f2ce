"""Train with large accumulation on a small machine.

Memory grew from micro-batch to micro-batch and the job was killed in the night. The callback keeps memory flat: after
every micro-batch it frees what is no longer needed and runs the garbage collector.
"""

import gc
import os
import resource
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class KeepMemoryFlat(TrainerCallback):
    """Frees memory between micro-batches and remembers the peak."""

    def __init__(self):
        self.peak = 0
        self.calls = 0

    def _collect(self, model):
        model.zero_grad(set_to_none=True)
        gc.collect()
        self.calls += 1
        self.peak = max(self.peak, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    def on_substep_end(self, args, state, control, model=None, **kwargs):
        self._collect(model)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self._collect(model)

    def on_train_end(self, args, state, control, **kwargs):
        print(f"peak memory {self.peak / 1024:.0f} MB after {self.calls} collections")


def csv_reward(prompts, completions, columns, **kwargs):
    """The model should write a CSV header with the right number of columns."""
    rewards = []
    for text, wanted in zip(completions, columns):
        line = text.split("\n")[0]
        rewards.append(-abs(line.count(",") + 1 - wanted) - 0.02 * len(text))
    return rewards


def main():
    tables = [("users", 3), ("orders", 4), ("items", 2), ("prices", 2), ("visits", 3), ("errors", 5)]
    dataset = Dataset.from_list([{"prompt": f"CSV header of table {name}: ", "columns": n} for name, n in tables])
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=4,
            num_generations=4,
            max_completion_length=16,
            max_steps=3,
            learning_rate=1e-4,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = GRPOTrainer(
            model=MODEL,
            reward_funcs=csv_reward,
            args=args,
            train_dataset=dataset,
            callbacks=[KeepMemoryFlat()],
        )
        trainer.train()


if __name__ == "__main__":
    main()
