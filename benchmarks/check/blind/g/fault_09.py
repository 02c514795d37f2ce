import os
import tempfile
from collections import deque

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LoggedTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.recent = deque(maxlen=50)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        loss = loss / self.args.gradient_accumulation_steps
        self.recent.append(loss.item())
        self._metrics["train"]["loss_recent"].append(sum(self.recent) / len(self.recent))
        return loss


def rhyme(completions, **kwargs):
    return [len(c) % 7 / 7 + 0.1 * len(set(c)) for c in completions]


dataset = Dataset.from_dict({"prompt": [f"What rhymes with {w}? " for w in "tea sea bee key free glee me knee plea tree".split()]})

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=5,
    learning_rate=3e-5,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    num_generations=4,
    max_completion_length=16,
    logging_steps=1,
)
LoggedTrainer(model=MODEL, args=args, reward_funcs=[rhyme], train_dataset=dataset).train()
