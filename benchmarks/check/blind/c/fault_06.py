"""GRPO with per-part learning rates."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class LayerwiseTrainer(GRPOTrainer):
    head_lr_scale = 0.5

    def create_optimizer(self, model=None):
        model = self.model if model is None else model
        lr, decay = self.args.learning_rate, self.args.weight_decay
        body, norms, head = [], [], []
        for name, param in model.named_parameters():
            if not param.requires_grad:
                continue
            if "lm_head" in name or "embed_tokens" in name:
                head.append(param)
            elif "norm" in name:
                norms.append(param)
            elif name.endswith("proj.weight"):
                body.append(param)
        groups = [
            {"params": body, "lr": lr, "weight_decay": decay},
            {"params": norms, "lr": lr, "weight_decay": 0.0},
            {"params": head, "lr": lr * self.head_lr_scale, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
        return self.optimizer


def reward_number(completions, answer, **kwargs):
    scores = []
    for completion, truth in zip(completions, answer):
        text = completion[0]["content"]
        tail = text.split("####")[-1].strip()
        scores.append((1.0 if tail == truth else 0.0) + 0.2 * ("####" in text) - 0.004 * len(text))
    return scores


def dataset():
    rng = random.Random(2)
    data = {"prompt": [], "answer": []}
    for _ in range(40):
        a, b, c = rng.randint(2, 9), rng.randint(2, 6), rng.randint(2, 4)
        question = (
            f"Gus has {a} boxes with {b} eggs each. Each costs {c} coins. How many coins do they cost together?"
        )
        data["prompt"].append([{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}])
        data["answer"].append(str(a * b * c))
    return Dataset.from_dict(data)


trainer = LayerwiseTrainer(
    model=MODEL,
    reward_funcs=[reward_number],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=36,
        learning_rate=3e-5,
        weight_decay=0.01,
        loss_type="grpo",
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to="none",
    ),
    train_dataset=dataset(),
)
trainer.train()
