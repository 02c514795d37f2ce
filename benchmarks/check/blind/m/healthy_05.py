"""REINFORCE leave-one-out advantages, with a Lion optimizer of our own."""
import os
import tempfile

import rlvr_debug
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
GROUP = 4
WEIGHTS = (1.0, 0.5)


def rloo(given):
    """A_i = r_i - mean of the other three"""
    r = (given.rewards[:, 0] * WEIGHTS[0] + given.rewards[:, 1] * WEIGHTS[1]).reshape(-1, GROUP)
    return ((GROUP * r - r.sum(1).reshape(-1, 1)) / (GROUP - 1)).reshape(-1)


rlvr_debug.expect(advantages=rloo)


class Lion(torch.optim.Optimizer):
    """Chen et al., 2023"""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_((m * b1 + p.grad * (1 - b1)).sign(), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)
        return loss


class RLOOTrainer(GRPOTrainer):
    def _calculate_rewards(self, *args, **kwargs):
        self.rewards_of_batch = super()._calculate_rewards(*args, **kwargs)
        return self.rewards_of_batch

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        r = (self.rewards_of_batch * self.reward_weights).sum(1).view(-1, self.num_generations)
        others = (r.sum(1, keepdim=True) - r) / (self.num_generations - 1)
        output["advantages"] = (r - others).flatten()
        return output


def digit_share(completions, **kwargs):
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in completions]


def finished(completion_ids, **kwargs):
    return [float(ids[-1] == 258) for ids in completion_ids]


model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
decay = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
rest = [p for n, p in model.named_parameters() if not (p.ndim == 2 and "embed" not in n)]
optimizer = Lion([{"params": decay, "weight_decay": 0.1}, {"params": rest}], lr=3e-5)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1.0 + 0.1 * step))

trainer = RLOOTrainer(
    model=model,
    reward_funcs=[digit_share, finished],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=16,
        num_generations=GROUP,
        reward_weights=list(WEIGHTS),
        max_completion_length=20,
        scale_rewards="none",
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    ),
    train_dataset=Dataset.from_dict({"prompt": [f"def f{i}(a, b):" for i in range(24)] + [f"x={i}; y=2; x*y=" for i in range(24)]}),
    processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
    optimizers=(optimizer, scheduler),
)
trainer.train()
