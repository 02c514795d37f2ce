"""Plain GRPO with a lot of bookkeeping: an EMA of the weights, norms per module, and token statistics."""
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class Ema(TrainerCallback):
    def __init__(self, decay=0.9):
        self.decay, self.average = decay, {}

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.average = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for n, p in model.named_parameters():
            self.average[n].lerp_(p, 1 - self.decay)
        self.swap(model)  # a look at the averaged model, then back
        total = sum(p.float().abs().sum().item() for p in model.parameters())
        self.swap(model)
        print(f"step {state.global_step}: {total:.1f} in the averaged weights")

    @torch.no_grad()
    def swap(self, model):
        for n, p in model.named_parameters():
            kept = p.detach().clone()
            p.copy_(self.average[n])
            self.average[n].copy_(kept)


class GradientNorms(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        norms = {n: p.grad.norm().item() for n, p in model.named_parameters() if p.grad is not None}
        print("largest gradient:", max(norms, key=norms.get))


class WatchingTrainer(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        with torch.no_grad():
            share = inputs["completion_mask"].float().mean().item()
            self._metrics["train"]["padding"].append(1 - share)
            self._metrics["train"]["loss_times_100"].append(loss.detach().item() * 100)
        return loss

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._metrics["train"]["best"].append(rewards.nansum(dim=1).max().item())
        return rewards


def answer_reward(completions, answer, **kwargs):
    return [1.0 if c.strip().split(" ")[0] == a else 0.0 for c, a in zip(completions, answer)]


def digit_reward(completions, **kwargs):
    return [0.1 * len(re.findall(r"\d", c)) - 0.01 * len(c) for c in completions]


rng = random.Random(3)
pairs = [(rng.randint(2, 9), rng.randint(2, 9)) for _ in range(48)]
dataset = Dataset.from_dict({"prompt": [f"{a} * {b} = " for a, b in pairs], "answer": [str(a * b) for a, b in pairs]})
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4,
    max_completion_length=20, max_steps=4, learning_rate=5e-5, loss_type="dr_grpo", scale_rewards="none",
    bf16=False, use_cpu=True, logging_steps=1, report_to="none", save_strategy="no",
)
trainer = WatchingTrainer(
    model=os.path.join(HERE, "tiny"), reward_funcs=[answer_reward, digit_reward], args=args, train_dataset=dataset,
    callbacks=[Ema(), GradientNorms()],
)
trainer.train()
