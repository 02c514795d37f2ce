"""GRPO with Adam's moments on disk while completions are generated."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class OffloadMoments(TrainerCallback):
    """The moments take twice the memory of the weights and are needed only in the optimizer step."""

    def __init__(self):
        self.path = os.path.join(tempfile.mkdtemp(), "moments.pt")

    @staticmethod
    def parameters(optimizer):
        return [p for group in optimizer.param_groups for p in group["params"]]

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        if not os.path.exists(self.path):
            return
        inner = getattr(optimizer, "optimizer", optimizer)
        moments = torch.load(self.path)
        for parameter, (exp_avg, exp_avg_sq) in zip(self.parameters(inner), moments, strict=True):
            inner.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32),
                "exp_avg": exp_avg.to(parameter.device),
                "exp_avg_sq": exp_avg_sq.to(parameter.device),
            }

    def on_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        inner = getattr(optimizer, "optimizer", optimizer)
        states = [inner.state[p] for p in self.parameters(inner)]
        torch.save([(s["exp_avg"].cpu(), s["exp_avg_sq"].cpu()) for s in states], self.path)
        inner.state.clear()


def length(completions, **kwargs):
    return [len(c[0]["content"]) / 30 for c in completions]


cities = ["Rome", "Bonn", "Riga", "Porto", "Ghent", "Lyon", "Graz", "Split"]
dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Is {c} large?"}] for c in cities]})
config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    temperature=1.3,
    learning_rate=5e-5,
    lr_scheduler_type="constant",
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to=[],
)
trainer = GRPOTrainer(
    model=MODEL, reward_funcs=length, args=config, train_dataset=dataset, callbacks=[OffloadMoments()]
)
trainer.train()
