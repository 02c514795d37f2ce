import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class DecayTrainer(GRPOTrainer):
    def create_optimizer(self, model=None):
        if self.optimizer is not None:
            return self.optimizer
        decay, no_decay = [], []
        for name, p in self.model.named_parameters():
            if not p.requires_grad:
                continue
            if p.ndim < 2 or "norm" in name or name.endswith(".bias"):
                no_decay.append(p)
            else:
                decay.append(p)
        groups = [
            {"params": decay, "weight_decay": self.args.weight_decay},
            {"params": no_decay, "weight_decay_rate": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=self.args.learning_rate,
            betas=(self.args.adam_beta1, self.args.adam_beta2),
            eps=self.args.adam_epsilon,
            weight_decay=self.args.weight_decay,
        )
        return self.optimizer


def reward(completions, **kwargs):
    return [sum(map(int, filter(str.isdecimal, c))) % 10 / 10 + 0.1 * len(set(c)) for c in completions]


names = ["Ada", "Bo", "Cy", "Dee", "Eli", "Fay", "Gus", "Hal", "Ida", "Jo", "Kit", "Lu"]
data = Dataset.from_dict({"prompt": [f"What is {n}'s lucky number? " for n in names]})

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=2e-4,
    weight_decay=0.1,
    lr_scheduler_type="constant",
    per_device_train_batch_size=6,
    num_generations=3,
    max_completion_length=16,
)
DecayTrainer(model=MODEL, args=args, reward_funcs=reward, train_dataset=data).train()
