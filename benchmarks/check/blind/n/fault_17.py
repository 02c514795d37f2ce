"""GRPO that logs which layers have large gradients, and clips them."""
import os
import re
import tempfile
from collections import defaultdict

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LayerNormsTrainer(GRPOTrainer):
    def _clip_grad_norm(self, model):
        max_norm = self.args.max_grad_norm
        by_layer = defaultdict(list)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                match = re.search(r"layers\.(\d+)\.", name)
                by_layer[match.group(1) if match else name.split(".")[-2]].append(parameter)

        squares = []
        for layer, parameters in by_layer.items():
            norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
            self._metrics["train"][f"grad_norm/{layer}"].append(norm.item())
            squares.append(norm**2)
        return torch.stack(squares).sum().sqrt()


def points(completions, answer, **kwargs):
    rewards = []
    for completion, value in zip(completions, answer):
        text = completion[0]["content"]
        numbers = re.findall(r"\d+", text)
        rewards.append(float(bool(numbers) and numbers[-1] == str(value)))
        rewards[-1] += 0.2 * ("The answer is" in text) + 0.03 * len(text)
    return rewards


rows = []
for i in range(8):
    who, what = ["Ada", "Ben", "Cleo", "Dev"][i % 4], ["shells", "stamps"][i // 4]
    a, b = 12 + i, 20 - i
    rows.append(
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?"},
            ],
            "answer": a * b,
        }
    )

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_grad_norm=0.5,
    optim="sgd",
    learning_rate=1e-2,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to=[],
)

if __name__ == "__main__":
    trainer = LayerNormsTrainer(MODEL, points, args, train_dataset=Dataset.from_list(rows))
    trainer.train()
