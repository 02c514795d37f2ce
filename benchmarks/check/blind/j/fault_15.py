import os, random, tempfile
import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
PEAK_LR, TOTAL = 3e-4, 6
SYSTEM = "Solve the problem step by step. End with #### and the number."


class PlateauThenDecay:
    """Constant for the first half, then linear down to a tenth."""

    def __init__(self, peak, total):
        self.peak, self.total = peak, total

    def __call__(self, step):
        half = self.total // 2
        if step <= half:
            return self.peak
        left = max(self.total - step, 0) / (self.total - half)
        return self.peak * (0.1 + 0.9 * left)


rng = random.Random(12)
problems = []
for _ in range(48):
    a, b = rng.randint(2, 30), rng.randint(2, 9)
    problems.append(
        {
            "prompt": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"Hana has {a} boxes with {b} pens each. How many pens does Hana have?"},
            ],
            "solution": a * b,
        }
    )


def reward(completions, solution, **kwargs):
    values = []
    for c, s in zip(completions, solution):
        text = c[0]["content"]
        values.append(1.0 * (str(s) in text) + 0.1 * ("pens" in text) + 0.02 * sum(x.isdigit() for x in text))
    return values


model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, weight_decay=0.0)
scheduler = LambdaLR(optimizer, lr_lambda=PlateauThenDecay(PEAK_LR, TOTAL))

trainer = GRPOTrainer(
    model=model,
    processing_class=AutoTokenizer.from_pretrained(MODEL),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True, bf16=False, report_to=[],
        learning_rate=PEAK_LR,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=44,
        max_steps=TOTAL,
        logging_steps=1,
        save_strategy="no",
    ),
    reward_funcs=reward,
    train_dataset=Dataset.from_list(problems),
    optimizers=(optimizer, scheduler),
)
trainer.train()
