"""GRPO with a KL term and one network in memory: the reference is the policy's code with the initial weights."""
import os
import tempfile

import torch
from datasets import Dataset
from torch import nn
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class InitialWeights(nn.Module):
    """Runs the policy's forward with a frozen copy of its initial weights, kept on the host."""

    def __init__(self, policy):
        super().__init__()
        self._policy = [policy]  # in a list, so that its parameters are not registered here
        self._weights = {n: p.detach().to("cpu", copy=True) for n, p in policy.named_parameters()}

    def forward(self, *args, **kwargs):
        policy = self._policy[0]
        weights = {n: w.to(policy.device) for n, w in self._weights.items()}
        with torch.no_grad():
            return torch.func.functional_call(policy, weights, args, kwargs)


class OneNetworkTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.ref_model = InitialWeights(self.accelerator.unwrap_model(self.model)).eval()


def hard_letters(completions, **kwargs):
    return [sum(c[0]["content"].count(x) for x in "kdtpb") / 5 for c in completions]


def main():
    birds = ["wren", "kite", "rook", "tern", "dove", "lark", "coot", "swift"]
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Describe the {b}."}] for b in birds]})
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        temperature=1.2,
        beta=0.1,
        learning_rate=2e-4,
        lr_scheduler_type="constant",
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    OneNetworkTrainer(model=MODEL, reward_funcs=hard_letters, args=config, train_dataset=dataset).train()


if __name__ == "__main__":
    main()
