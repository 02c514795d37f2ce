"""Sign-momentum (Lion) with layer-wise learning rates.

Lower layers learn more slowly, norms and biases have no weight decay, and the rate warms up over two steps and then
stays constant.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SignMomentum(torch.optim.Optimizer):
    """Lion: the update is the sign of an interpolation of momentum and gradient."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                direction = state["momentum"].lerp(p.grad, 1 - beta1).sign_()
                p.add_(direction, alpha=-group["lr"])
                state["momentum"].lerp_(p.grad, 1 - beta2)
        return loss


class LayerwiseTrainer(GRPOTrainer):
    decay_per_layer = 0.5

    def create_optimizer(self, model=None):
        if self.optimizer is not None:
            return self.optimizer
        model = model if model is not None else self.model
        depth = model.config.num_hidden_layers
        groups = {}
        for name, p in model.named_parameters():
            if not p.requires_grad:
                continue
            if name.startswith("model.embed_tokens"):
                below = depth
            elif name.startswith("model.layers."):
                below = depth - 1 - int(name.split(".")[2])
            else:
                below = 0
            groups.setdefault((below, p.ndim > 1), []).append(p)
        self.optimizer = SignMomentum([
            {
                "params": params,
                "lr": self.args.learning_rate * self.decay_per_layer ** below,
                "weight_decay": self.args.weight_decay if decayed else 0.0,
            }
            for (below, decayed), params in sorted(groups.items(), key=lambda item: item[0])
        ], lr=self.args.learning_rate)
        return self.optimizer

    def create_scheduler(self, num_training_steps, optimizer=None):
        optimizer = optimizer if optimizer is not None else self.optimizer
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 2))
        self._created_lr_scheduler = True
        return self.lr_scheduler


def even_length(completions, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    return [0.5 * (len(text) % 2 == 0) + sum(c in "aeiou" for c in text) / max(len(text), 1) for text in texts]


if __name__ == "__main__":
    rooms = ["hall", "shed", "ward", "cabin", "porch", "vault", "shop", "tent", "loft", "yard"]
    trainer = LayerwiseTrainer(
        model=MODEL,
        reward_funcs=even_length,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no",
            per_device_train_batch_size=8, num_generations=4, max_completion_length=20,
            learning_rate=2e-4, weight_decay=0.1, max_grad_norm=0.5, max_steps=3, logging_steps=1,
        ),
        train_dataset=Dataset.from_dict({
            "prompt": [[{"role": "user", "content": f"Who is in the {room}?"}] for room in rooms],
        }),
    )
    trainer.train()
