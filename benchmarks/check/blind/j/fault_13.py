"""Small-memory recipe: micro-batches of one group, accumulation, and a few housekeeping callbacks."""
import gc
import os
import random
import resource
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class MemorySaver(TrainerCallback):
    """Gives back what a micro-batch has left behind before the next one starts."""

    def on_substep_end(self, args, state, control, model=None, **kwargs):
        model.zero_grad(set_to_none=True)
        gc.collect()

    def on_step_end(self, args, state, control, **kwargs):
        gc.collect()


class PeakMemory(TrainerCallback):
    def __init__(self):
        self.peaks = {}

    def on_step_end(self, args, state, control, **kwargs):
        self.peaks[state.global_step] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    def on_train_end(self, args, state, control, **kwargs):
        print("peak MiB:", self.peaks)


class StopOnCollapse(TrainerCallback):
    def __init__(self, minimum=1.0, patience=3):
        self.minimum, self.patience, self.bad = minimum, patience, 0

    def on_log(self, args, state, control, logs=None, **kwargs):
        length = (logs or {}).get("completions/mean_length")
        if length is None:
            return
        self.bad = self.bad + 1 if length < self.minimum else 0
        if self.bad >= self.patience:
            control.should_training_stop = True


def load_rows(n=96):
    rng = random.Random(8)
    rows = []
    for i in range(n):
        a, b = rng.randint(2, 30), rng.randint(2, 9)
        who = rng.choice(["Ada", "Cleo", "Dev", "Hana"])
        rows.append((f"{who} has {a} boxes with {b} apples each. How many apples does {who} have?", a * b))
    return rows


def exact(completions, gold, **kwargs):
    return [1.0 if c[0]["content"].strip().endswith(str(g)) else 0.0 for c, g in zip(completions, gold)]


def compact(completions, **kwargs):
    return [-0.01 * len(c[0]["content"]) for c in completions]


def main():
    rows = load_rows()
    dataset = Dataset.from_dict(
        {
            "prompt": [[{"role": "system", "content": SYSTEM}, {"role": "user", "content": q}] for q, _ in rows],
            "gold": [g for _, g in rows],
        }
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        num_generations=4,
        max_completion_length=44,
        learning_rate=1e-4,
        weight_decay=0.01,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=TINY,
        args=args,
        reward_funcs=[exact, compact],
        train_dataset=dataset,
        callbacks=[MemorySaver(), PeakMemory(), StopOnCollapse()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
