import os
import tempfile

import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."
TOTAL = 8


class PolynomialDecay(TrainerCallback):
    def on_step_end(self, args, state, control, lr_scheduler=None, **kwargs):
        lr_scheduler.step()
        print(f"step {state.global_step}: lr {lr_scheduler.get_last_lr()[0]:.3e}")


def short(completions, **kwargs):
    return [1.0 / (1 + len(c[0]["content"])) for c in completions]


def right(completions, answer, **kwargs):
    return [float(str(a) in c[0]["content"]) for c, a in zip(completions, answer)]


model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0)
scheduler = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / (2 * TOTAL)) ** 2)

dataset = Dataset.from_list([
    {
        "prompt": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Hana has {x} boxes with {y} eggs each. How many eggs does Hana have?"},
        ],
        "answer": x * y,
    }
    for x in (2, 3, 4, 5) for y in (6, 7, 8)
])

trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[short, right],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=TOTAL, per_device_train_batch_size=8, num_generations=8, max_completion_length=24,
        reward_weights=[0.5, 1.0],
    ),
    train_dataset=dataset,
    optimizers=(optimizer, scheduler),
    callbacks=[PolynomialDecay()],
)
trainer.train()
