import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class NormLogTrainer(GRPOTrainer):
    """Logs which weights dominate the gradient while clipping."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.largest = []

    def _clip_grad_norm(self, model):
        norms = {}
        for name, param in model.named_parameters():
            if param.grad is None:
                continue
            norms[name] = torch.nn.utils.clip_grad_norm_([param], self.args.max_grad_norm)
        total = torch.stack(list(norms.values())).norm()
        name = max(norms, key=lambda key: norms[key].item())
        self.largest.append((name, norms[name].item()))
        return total


def rows():
    for i in range(48):
        name = ("Hana", "Cleo", "Finn")[i % 3]
        thing = ("coins", "cards", "apples", "toys", "shells")[i % 5]
        a, b = 2 + (7 * i) % 8, 2 + (2 * i) % 7
        yield {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"{name} has {a} boxes with {b} {thing} each. How many {thing} does {name} have?"},
            ]
        }


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / 8 for c in completions]


def penalty(completion_ids, **kwargs):
    return [-max(0, len(ids) - 16) / 16 for ids in completion_ids]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        temperature=1.2,
        max_completion_length=32,
        learning_rate=3e-4,
        max_grad_norm=0.2,
        loss_type="dapo",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = NormLogTrainer(MODEL, [digits, penalty], args, train_dataset=Dataset.from_list(list(rows())))
    trainer.train()
    for step, (name, norm) in enumerate(trainer.largest, 1):
        print(step, name, round(norm, 4))


if __name__ == "__main__":
    main()
