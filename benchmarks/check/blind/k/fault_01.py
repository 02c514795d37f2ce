import os, random, tempfile
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
PEAK, WARMUP, TOTAL = 2e-4, 3, 5

rng = random.Random(1)
names = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]
rows = []
for _ in range(40):
    n, a, b = rng.choice(names), rng.randint(2, 9), rng.randint(2, 9)
    rows.append({"prompt": [{"role": "user", "content": f"{n} has {a} boxes with {b} apples each. How many apples does {n} have?"}]})


def digits(completions, **kw):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch.isdigit() for ch in t) / 10 - 0.02 * len(t) for t in texts]


def warmup_then_decay(step):
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    return PEAK * max(0.1, 1 - (step - WARMUP) / TOTAL)


model = AutoModelForCausalLM.from_pretrained(os.path.join(HERE, "tiny"), dtype=torch.float32)
opt = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.95), weight_decay=0.0)
sched = torch.optim.lr_scheduler.LambdaLR(opt, warmup_then_decay)

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[],
    per_device_train_batch_size=8, num_generations=4, max_completion_length=24,
    max_steps=TOTAL, logging_steps=1, save_strategy="no",
)
trainer = GRPOTrainer(model, digits, args=args, train_dataset=Dataset.from_list(rows), optimizers=(opt, sched))
trainer.train()
