# grpo_boxes.py - box problems from a jsonl file
import json, random, tempfile, pathlib
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

here = pathlib.Path(__file__).resolve().parent
tmp = pathlib.Path(tempfile.mkdtemp())

random.seed(1)
with open(tmp / "boxes.jsonl", "w") as f:
    for _ in range(64):
        n, k = random.randint(11, 30), random.randint(11, 30)
        f.write(json.dumps({"name": random.choice(["Ada", "Gus", "Hana"]), "n": n, "k": k, "answer": n * k}) + "\n")

QUESTION = "{name} has {n} boxes with {k} shells each. How many shells does {name} have?"
SYSTEM = "Solve the problem step by step. End with #### and the number."


def to_prompt(example):
    return {
        "prompt": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": QUESTION},
        ]
    }


ds = load_dataset("json", data_files=str(tmp / "boxes.jsonl"), split="train", cache_dir=str(tmp)).map(to_prompt)


def near(completions, answer, **kw):
    def score(text, gold):
        nums = "".join(c if c.isdigit() else " " for c in text).split()
        if not nums:
            return 0.0
        return max(0.0, 1.0 - abs(int(nums[-1][:6]) - gold) / gold) + 0.1
    return [score(c[0]["content"], a) for c, a in zip(completions, answer)]


GRPOTrainer(
    str(here / "tiny"),
    near,
    GRPOConfig(str(tmp / "out"), use_cpu=True, report_to="none", max_steps=4, bf16=False, learning_rate=1e-4,
               per_device_train_batch_size=8, num_generations=4, max_completion_length=24, save_strategy="no"),
    ds,
).train()
