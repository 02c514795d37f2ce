import os
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class LRWatcher(TrainerCallback):
    """prints the learning rate of each update"""

    def __init__(self):
        self.seen = []

    def on_step_end(self, args, state, control, optimizer=None, lr_scheduler=None, **kwargs):
        lr_scheduler.step()
        lr = lr_scheduler.get_last_lr()[0]
        self.seen.append(lr)
        if state.is_world_process_zero:
            print(f"[{state.global_step:>4}] lr={lr:.3e}")


def palindromic(completions, **kwargs):
    def score(s):
        s = s.strip()
        if not s:
            return 0.0
        return sum(a == b for a, b in zip(s, reversed(s))) / len(s)

    return [score(c) - 0.01 * len(c) for c in completions]


watcher = LRWatcher()
trainer = GRPOTrainer(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=palindromic,
    train_dataset=Dataset.from_dict({"prompt": [f"{n}^2=" for n in range(3, 40)]}),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        learning_rate=2e-5,
        lr_scheduler_type="linear",
        max_steps=4,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
    ),
    callbacks=[watcher],
)
trainer.train()
