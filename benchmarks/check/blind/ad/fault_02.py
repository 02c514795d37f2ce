import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = {"role": "system", "content": "Solve the problem step by step. End with #### and the number."}


def build(n):
    rows = []
    for i in range(n):
        who, what = ["Gus", "Hana", "Eve", "Dev"][i % 4], ["shells", "stamps", "toys"][i % 3]
        a, b = 2 + i % 8, 3 + (i * 3) % 7
        if i % 2:
            q = f"{who} has {a} boxes with {b} {what} each. Each costs 4 coins. How many coins do they cost together?"
            gold = a * b * 4
        else:
            q = f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?"
            gold = a * b
        rows.append({"prompt": [SYSTEM, {"role": "user", "content": q}], "gold": str(gold)})
    return Dataset.from_list(rows)


def has_gold(completions, gold, **kwargs):
    return [float(g in c[0]["content"]) for c, g in zip(completions, gold)]


def letter_s(completions, **kwargs):
    return [c[0]["content"].count("s") / 10 for c in completions]


class BalancedCollator:
    """Spread long and short problems over the batch, so that no slice of it holds only long rows."""

    def __init__(self, stride=2):
        self.stride = stride

    def __call__(self, features):
        out = []
        for offset in range(self.stride):
            out.extend(features[offset :: self.stride])
        return out


class Trainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.data_collator = BalancedCollator()


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    model_init_kwargs={"dtype": "float32"},
    per_device_train_batch_size=16,
    num_generations=8,
    max_completion_length=32,
    learning_rate=1e-4,
    loss_type="grpo",
    max_steps=3,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
)
trainer = Trainer(
    model=MODEL,
    reward_funcs=[has_gold, letter_s],
    args=args,
    train_dataset=build(16),
)
trainer.train()
