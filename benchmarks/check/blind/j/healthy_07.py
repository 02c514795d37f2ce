"""LoRA on two tasks at once: word problems and lookups, each with its own reward."""
import os
import random
import tempfile

from datasets import Dataset, concatenate_datasets
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
NAMES = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]
OLD_NAMES = ["Aldora", "Almund", "Bridora", "Brimund", "Cordora", "Danvek"]


def math_task(n, rng):
    rows = []
    for _ in range(n):
        name, a, b = rng.choice(NAMES), rng.randint(2, 30), rng.randint(2, 9)
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                    {"role": "user", "content": f"{name} has {a} boxes with {b} cards each. How many cards does {name} have?"},
                ],
                "task": "math",
                "key": str(a * b),
            }
        )
    return Dataset.from_list(rows)


def name_task(n, rng):
    rows = []
    for _ in range(n):
        name, tie = rng.choice(OLD_NAMES), rng.choice(["mentor", "rival", "cousin", "tutor"])
        rows.append({"prompt": [{"role": "user", "content": f"Who is the {tie} of {name}?"}], "task": "names", "key": name})
    return Dataset.from_list(rows)


def math_reward(completions, task, key, **kwargs):
    return [
        (1.0 * c[0]["content"].endswith(k) + 0.04 * sum(x.isdigit() for x in c[0]["content"])) if t == "math" else None
        for c, t, k in zip(completions, task, key)
    ]


def name_reward(completions, task, key, **kwargs):
    scores = []
    for c, t, k in zip(completions, task, key):
        if t != "names":
            scores.append(None)
        else:
            text = c[0]["content"]
            scores.append(0.5 * (k in text) - 0.01 * len(text))
    return scores


def length_reward(completion_ids, **kwargs):
    return [-0.005 * len(ids) for ids in completion_ids]


def main():
    rng = random.Random(18)
    data = concatenate_datasets([math_task(48, rng), name_task(32, rng)]).shuffle(seed=0)
    lora = LoraConfig(
        r=4,
        lora_alpha=16,
        lora_dropout=0.1,
        use_rslora=True,
        target_modules=["q_proj", "v_proj", "o_proj"],
        modules_to_save=["model.norm"],
        task_type="CAUSAL_LM",
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        beta=0.02,
        reward_weights=[1.0, 0.7, 0.5],
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=64,
        temperature=1.1,
        learning_rate=1e-3,
        max_steps=5,
        logging_steps=1,
        save_strategy="no",
        gradient_checkpointing=False,
    )
    trainer = GRPOTrainer(
        model=MODEL,
        args=args,
        peft_config=lora,
        reward_funcs=[math_reward, name_reward, length_reward],
        train_dataset=data,
    )
    trainer.train()


if __name__ == "__main__":
    main()
