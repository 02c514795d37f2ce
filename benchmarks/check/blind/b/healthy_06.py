# %% [markdown]
# GRPO with plain SGD (Nesterov), a rate per layer, and a cosine schedule. Adam's state is too big for us.

# %%
import math
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

P = Path(__file__).resolve().parent / "tiny"
model = AutoModelForCausalLM.from_pretrained(P, dtype=torch.float32)

# %%
STEPS, LR, DECAY = 4, 1e-2, 0.7
depth = model.config.num_hidden_layers


def rate_of(name):
    if "embed_tokens" in name:
        return LR * DECAY ** (depth + 1)
    if ".layers." in name:
        i = int(name.split(".layers.")[1].split(".")[0])
        return LR * DECAY ** (depth - i)
    return LR


groups = {}
for n, p in model.named_parameters():
    wd = 0.0 if p.ndim == 1 else 1e-3
    groups.setdefault((rate_of(n), wd), []).append(p)
optimizer = torch.optim.SGD(
    [{"params": ps, "lr": lr, "weight_decay": wd} for (lr, wd), ps in groups.items()],
    lr=LR, momentum=0.9, nesterov=True,
)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.5 * (1 + math.cos(math.pi * s / STEPS)))


# %%
def reward(completions, **kwargs):
    return [len(set(c)) / (2 + len(c)) - 0.01 * len(c) for c in completions]


trainer = GRPOTrainer(
    model=model,
    reward_funcs=reward,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), learning_rate=LR, max_steps=STEPS, max_grad_norm=0.5,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=24,
        use_cpu=True, bf16=False, report_to="none", save_strategy="no", logging_steps=1,
    ),
    train_dataset=Dataset.from_dict({"prompt": [f"{k} {n} + {k} {n} =" for k in range(3, 7) for n in ("hats", "cars", "pens", "cups", "bags")]}),
    optimizers=(optimizer, schedule),
)
trainer.train()
