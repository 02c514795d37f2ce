import os
import tempfile
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

sgd = torch.optim.SGD(model.parameters(), lr=0.004, momentum=0.8, nesterov=True, weight_decay=0.02)


def triangle(step, period=4):
    # factor of the base rate: 0, 0.5, 1, 0.5, 0, ...
    x = step % period
    return 1 - abs(x - period / 2) / (period / 2)


def reward(prompts, completions, **kwargs):
    return [len(set(c)) / 10 + 0.1 * c.count("<") for c in completions]


trainer = GRPOTrainer(
    model=model,
    reward_funcs=reward,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=5, max_grad_norm=0.0, num_generations=4, per_device_train_batch_size=8,
        max_completion_length=24, use_cpu=True, bf16=False, report_to=[], logging_steps=1, save_strategy="no",
    ),
    train_dataset=Dataset.from_dict({"prompt": ["Once upon a time", "List: red, green,", "x = [", "3 + 4 =", "Ben has", "Who is"] * 5}),
    optimizers=(sgd, torch.optim.lr_scheduler.LambdaLR(sgd, triangle)),
)
trainer.train()
