import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class NormTrainer(GRPOTrainer):
    """Single rollouts sometimes explode: keep an eye on the norm of each micro-batch."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)
        self._metrics["train"]["micro_norm"].append(norm.item())
        return loss


def reward(completions, **kwargs):
    return [3.0 * (c[:1] == "4") + 0.1 * len(set(c)) for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=5,
    learning_rate=1e-4,
    max_grad_norm=0.2,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    num_generations=4,
    max_completion_length=10,
    loss_type="grpo",
    logging_steps=1,
)
data = Dataset.from_dict({"prompt": [f"Page {p}, line " for p in range(1, 25)]})
NormTrainer(model=MODEL, args=args, reward_funcs=[reward], train_dataset=data).train()
