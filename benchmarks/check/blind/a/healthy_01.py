"""LoRA + GRPO on boxes-and-items word problems (conversational), KL to the base model."""
import os
import random
import tempfile

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
SYSTEM = "Solve the problem step by step. End with #### and the number."
rng = random.Random(7)


def problem():
    who, what = rng.choice(["Ada", "Ben", "Cleo", "Dev"]), rng.choice(["apples", "books", "cards", "eggs"])
    a, b = rng.randint(11, 29), rng.randint(11, 39)
    text = f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?"
    return {
        "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}],
        "gold": a * b,
        "item": what,
    }


train = Dataset.from_list([problem() for _ in range(48)])


# keyword-only, and only what it needs; the rest goes to **_
def close_to_gold(*, completions, gold, log_metric=None, **_):
    out = []
    for msgs, g in zip(completions, gold):
        digits = "".join(ch if ch.isdigit() else " " for ch in msgs[-1]["content"]).split()
        guess = int(digits[-1]) if digits else None
        out.append(0.0 if guess is None else max(0.0, 1.0 - abs(guess - g) / g))
    if log_metric is not None:
        log_metric("closeness", sum(out) / len(out))
    return out


def names_the_item(completions, item, **_):
    return [1 if it in m[0]["content"] else 0 for m, it in zip(completions, item)]  # ints, on purpose


cfg = GRPOConfig(
    output_dir=tempfile.mkdtemp(prefix="lora_grpo_"),
    use_cpu=True,
    report_to="none",
    max_steps=4,
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    learning_rate=5e-4,
    lr_scheduler_type="constant",
    beta=0.02,
    reward_weights=[1.0, 0.25],
    bf16=False,
    logging_steps=1,
    save_strategy="no",
)
trainer = GRPOTrainer(
    model=os.path.join(HERE, "tiny"),
    reward_funcs=[close_to_gold, names_the_item],
    args=cfg,
    train_dataset=train,
    peft_config=LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"),
)
trainer.train()
