"""GRPO with a stop sequence: rollouts should end at the first line break, as in the evaluation."""
import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
STOPS = ["\n", "\n\n", "."]
stop_ids = [tokenizer(stop, add_special_tokens=False)["input_ids"][0] for stop in STOPS]

rng = random.Random(11)
rows = []
for _ in range(32):
    who = rng.choice(["Ada", "Ben", "Cleo", "Dev", "Eve"])
    what = rng.choice(["shells", "stamps", "toys", "eggs"])
    a, b = rng.randint(2, 20), rng.randint(2, 9)
    rows.append(
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {
                    "role": "user",
                    "content": f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?",
                },
            ],
            "product": a * b,
            "what": what,
        }
    )


def first_line_reward(completions, product, what, **kwargs):
    """One point for the product in the first line, a bit for the right noun, less for long lines."""
    scores = []
    for completion, value, noun in zip(completions, product, what):
        line = completion[0]["content"].split("\n")[0]
        score = 1.0 if str(value) in line else 0.0
        score += 0.25 if noun in line else 0.0
        scores.append(score - 0.005 * len(line))
    return scores


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=28,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    temperature=1.5,
    generation_kwargs={"eos_token_id": [tokenizer.eos_token_id, *stop_ids]},
)
trainer = GRPOTrainer(
    model=MODEL,
    processing_class=tokenizer,
    reward_funcs=first_line_reward,
    args=args,
    train_dataset=Dataset.from_list(rows),
)
trainer.train()
