"""Keep an exponential moving average of the weights and write it next to the checkpoints.

We deploy the averaged weights. After every step the callback puts the average into the model, saves it with
`save_pretrained`, and puts the training weights back.
"""

import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class AveragedWeights(TrainerCallback):
    def __init__(self, folder, decay=0.9, every=1):
        self.folder = folder
        self.decay = decay
        self.every = every
        self.average = None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.average = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            self.average[name].lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def swap_in(self, model):
        backup = {}
        for name, p in model.named_parameters():
            backup[name] = p.data
            p.data.copy_(self.average[name])
        return backup

    @torch.no_grad()
    def restore(self, model, backup):
        for name, p in model.named_parameters():
            p.data.copy_(backup[name])

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.update(model)
        if state.global_step % self.every == 0:
            backup = self.swap_in(model)
            model.save_pretrained(os.path.join(self.folder, f"average-{state.global_step}"))
            self.restore(model, backup)


def calm(completions, **kwargs):
    """No exclamation marks, no digits, a moderate length."""
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        noise = sum(c.isdigit() or c in "!*" for c in text)
        rewards.append(-0.1 * noise - abs(len(text) - 15) / 30)
    return rewards


def main():
    complaints = ["late train", "cold soup", "loud music", "wrong size", "broken lamp", "no reply", "long queue"]
    dataset = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Reply to a complaint: {c}"}] for c in complaints]}
    )
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=20,
            max_steps=3,
            learning_rate=2e-4,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        averaged = AveragedWeights(os.path.join(out, "ema"), decay=0.9)
        trainer = GRPOTrainer(
            model=MODEL, reward_funcs=calm, args=args, train_dataset=dataset, callbacks=[averaged]
        )
        trainer.train()


if __name__ == "__main__":
    main()
