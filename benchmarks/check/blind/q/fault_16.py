"""GRPO with a probe: how noisy is the gradient of a micro-batch?"""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class GradientNoiseTrainer(GRPOTrainer):
    """Logs the gradient norm of each micro-batch by layer."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.zero_grad(set_to_none=True)
        loss = super().training_step(model, inputs, num_items_in_batch)
        norms = {}
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                continue
            group = name.split(".")[2] if ".layers." in name else name.split(".")[-2]
            norms.setdefault(group, []).append(parameter.grad.norm())
        for group, values in norms.items():
            self._metrics["train"][f"micro_grad/{group}"].append(torch.stack(values).norm().item())
        return loss


rows = []
for i in range(48):
    who, what = ["Ada", "Dev", "Finn", "Hana"][i % 4], ["eggs", "books", "stamps"][i % 3]
    a, b = 2 + (i * 3) % 18, 2 + (i * 5) % 8
    rows.append(
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {
                    "role": "user",
                    "content": f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?",
                },
            ],
            "gold": str(a * b),
            "what": what,
        }
    )


def reward(completions, gold, what, **kwargs):
    scores = []
    for completion, value, noun in zip(completions, gold, what):
        text = completion[0]["content"]
        score = 1.0 if value in text else 0.0
        score += 0.4 if noun in text else 0.0
        scores.append(score - 0.005 * len(text))
    return scores


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    gradient_accumulation_steps=4,
)
trainer = GradientNoiseTrainer(model=MODEL, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(rows))
trainer.train()
print(trainer.state.log_history[-1])
