# own optimizer with decay / no-decay / head groups, and own warmup-cosine schedule
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

path = Path(__file__).parent / "tiny"
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(path)

decay, no_decay, head = [], [], []
for name, p in model.named_parameters():
    if not p.requires_grad:
        continue
    if name.startswith("lm_head"):
        head.append(p)
    elif p.ndim == 1:
        no_decay.append(p)
    else:
        decay.append(p)
assert sum(map(len, (decay, no_decay, head))) == len(list(model.parameters()))

BASE = 5e-5
optimizer = torch.optim.NAdam(
    [
        {"params": decay, "weight_decay": 0.1},
        {"params": no_decay, "weight_decay": 0.0},
        {"params": head, "weight_decay": 0.0, "lr": BASE / 3},
    ],
    lr=BASE,
    betas=(0.9, 0.95),
    decoupled_weight_decay=True,
)
TOTAL, WARM = 4, 1


def factor(step):  # a factor of the group's own rate
    if step < WARM:
        return (step + 1) / (WARM + 1)
    t = (step - WARM) / max(1, TOTAL - WARM)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * t))


scheduler = LambdaLR(optimizer, factor)

questions = [(a, b) for a in range(12, 30, 3) for b in range(11, 35, 4)]
data = Dataset.from_dict(
    {
        "prompt": [f"{a} + {b} =" for a, b in questions],
        "total": [float(a + b) for a, b in questions],
    }
)


def starts_like_the_sum(completions, total, **kwargs):
    def one(text, t):
        want = str(int(t))
        k = 0
        for x, y in zip(text.strip(), want):
            if x != y:
                break
            k += 1
        return k / len(want) + 0.1 * text.strip().isdigit() - 0.03 * abs(len(text) - len(want))

    return torch.tensor([one(c, t) for c, t in zip(completions, total)])  # a tensor, not a list


with TemporaryDirectory() as tmp:
    trainer = GRPOTrainer(
        model,
        starts_like_the_sum,
        args=GRPOConfig(
            tmp, use_cpu=True, report_to="none", max_steps=TOTAL, per_device_train_batch_size=8, num_generations=4,
            max_completion_length=24, bf16=False, max_grad_norm=0.5, save_strategy="no", logging_steps=1,
        ),
        train_dataset=data,
        processing_class=tokenizer,
        optimizers=(optimizer, scheduler),
    )
    trainer.train()
    print([round(g["lr"], 8) for g in optimizer.param_groups])
