import os
import tempfile

import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
STEPS, BASE_LR, DECAY = 6, 0.05, 0.8

model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
depth = model.config.num_hidden_layers


def level(name):
    if name.startswith("model.embed_tokens"):
        return 0
    if name.startswith("model.layers."):
        return 1 + int(name.split(".")[2])
    return depth + 1  # final norm and head


groups = {}
for name, param in model.named_parameters():
    groups.setdefault(level(name), []).append(param)
optimizer = torch.optim.SGD(
    [{"params": params, "lr": BASE_LR * DECAY ** (depth + 1 - k)} for k, params in sorted(groups.items())],
    lr=BASE_LR, momentum=0.9, nesterov=True,
)


def warm_then_linear(step):
    return (step + 1) / 2 if step < 1 else max(0.0, (STEPS - step) / (STEPS - 1))


def constant(step):
    return 1.0


scheduler = LambdaLR(optimizer, [constant if k == 0 else warm_then_linear for k in sorted(groups)])


def reward_distinct(completions, **kwargs):
    return [len({ch for ch in text if ch.isdigit()}) / 10 for text in completions]


GRPOTrainer(
    model=model,
    processing_class=AutoTokenizer.from_pretrained(path, padding_side="left"),
    reward_funcs=reward_distinct,
    train_dataset=Dataset.from_dict({"prompt": [f"{i} + {i % 7} =" for i in range(30)]}),
    optimizers=(optimizer, scheduler),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), learning_rate=BASE_LR, max_steps=STEPS, max_grad_norm=0.5,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=20, logging_steps=1,
        use_cpu=True, bf16=False, report_to=[], save_strategy="no",
    ),
).train()
