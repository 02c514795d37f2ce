import os
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ScheduleMonitor(TrainerCallback):
    """Records the learning rate of each update, and ends training early when it has decayed to nothing."""

    def __init__(self, floor=1e-8):
        self.floor = floor
        self.rates = []

    def on_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        self.rates.append(optimizer.param_groups[0]["lr"])

    def on_step_end(self, args, state, control, lr_scheduler=None, **kwargs):
        lr_scheduler.step()
        if max(lr_scheduler.get_last_lr()) < self.floor:
            control.should_training_stop = True
        return control


def make(n=48):
    rows = []
    for i in range(n):
        name = ("Finn", "Hana", "Cleo")[i % 3]
        thing = ("coins", "books", "toys", "cards")[i % 4]
        a, b = 2 + (3 * i) % 9, 2 + (5 * i) % 4
        rows.append({
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"{name} has {a} boxes with {b} {thing} each. How many {thing} does {name} have?"},
            ],
            "answer": str(a * b),
        })
    return Dataset.from_list(rows)


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / (1 + len(c[0]["content"])) for c in completions]


def answer_in_text(completions, answer, **kwargs):
    return [1.0 if a in c[0]["content"] else 0.0 for c, a in zip(completions, answer)]


def length(completion_ids, **kwargs):
    return [-len(ids) / 100 for ids in completion_ids]


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        learning_rate=4e-4,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.1},
        loss_type="dr_grpo",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    monitor = ScheduleMonitor()
    trainer = GRPOTrainer(MODEL, [digits, answer_in_text, length], args, train_dataset=make(), callbacks=[monitor])
    trainer.train()
    print(monitor.rates)
