"""Layer-wise learning-rate decay for the policy: lower layers move less."""
import os
import random
import re
import tempfile
from collections import defaultdict

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
LAYER = re.compile(r"\.layers\.(\d+)\.")


class LayerwiseTrainer(GRPOTrainer):
    layer_decay = 0.8

    def create_optimizer(self, model=None):
        if self.optimizer is not None:
            return self.optimizer
        model = self.model if model is None else model
        depth = model.config.num_hidden_layers
        decay_names = set(self.get_decay_parameter_names(model))

        groups = defaultdict(list)
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            found = LAYER.search(name)
            if found:
                groups[int(found.group(1)), name in decay_names].append(parameter)

        self.optimizer = torch.optim.AdamW(
            [
                {
                    "params": parameters,
                    "lr": self.args.learning_rate * self.layer_decay ** (depth - 1 - layer),
                    "weight_decay": self.args.weight_decay if decays else 0.0,
                }
                for (layer, decays), parameters in sorted(groups.items())
            ],
            lr=self.args.learning_rate,
            betas=(self.args.adam_beta1, self.args.adam_beta2),
            eps=self.args.adam_epsilon,
        )
        return self.optimizer


def reward(completions, gold, **kwargs):
    out = []
    for c, g in zip(completions, gold):
        text = c[0]["content"]
        out.append(float(g in text) + 0.1 * sum(c in "02468" for c in text))
    return out


def main():
    rng = random.Random(43)
    rows = []
    for _ in range(32):
        a, b = rng.randint(2, 9), rng.randint(10, 99)
        rows.append(
            {
                "prompt": [{"role": "user", "content": f"Eve has {a} boxes with {b} cards each. How many cards does Eve have?"}],
                "gold": str(a * b),
            }
        )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=2e-4,
        weight_decay=0.01,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    LayerwiseTrainer(model=MODEL, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(rows)).train()


if __name__ == "__main__":
    main()
