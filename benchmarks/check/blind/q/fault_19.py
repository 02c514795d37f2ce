"""GRPO that saves from a CPU copy of the weights, so a slow disk does not hold up the trainer."""
import os
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Snapshot(TrainerCallback):
    """Copies the weights to the CPU while the step's rollouts are generated."""

    def __init__(self):
        self.weights = None

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        self.weights = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


class SnapshotTrainer(GRPOTrainer):
    def __init__(self, *args, snapshot, **kwargs):
        super().__init__(*args, **kwargs)
        self.snapshot = snapshot
        self.add_callback(snapshot)

    def _save(self, output_dir=None, state_dict=None):
        if state_dict is None:
            state_dict = self.snapshot.weights
        super()._save(output_dir, state_dict=state_dict)


rows = []
people = ["Almund", "Brigan", "Cornia", "Danvek", "Elsor", "Fenric"]
for i in range(24):
    first, second = ["mentor", "tutor", "cousin"][i % 3], ["rival", "patron"][i % 2]
    rows.append(
        {"prompt": [{"role": "user", "content": f"Who is the {first} of the {second} of {people[i % 6]}?"}], "n": i % 4}
    )


def letters(completions, n, **kwargs):
    wanted = "aeor"
    return [c[0]["content"].count(wanted[k]) / (1 + len(c[0]["content"])) for c, k in zip(completions, n)]


def not_empty(completions, **kwargs):
    return [0.2 if c[0]["content"].strip() else -0.2 for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=16,
    max_steps=4,
    learning_rate=1e-3,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="steps",
    save_steps=1,
    save_total_limit=2,
)
trainer = SnapshotTrainer(
    model=MODEL,
    reward_funcs=[letters, not_empty],
    args=args,
    train_dataset=Dataset.from_list(rows),
    snapshot=Snapshot(),
)
trainer.train()
print(sorted(os.listdir(args.output_dir)))
