import os
import re
import random
import tempfile
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

here = os.path.dirname(os.path.abspath(__file__))
random.seed(3)

problems = []
for _ in range(64):
    a, b = random.randint(2, 9), random.randint(2, 9)
    who = random.choice(["Ada", "Ben", "Cleo", "Dev"])
    problems.append(
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"{who} has {a} boxes with {b} shells each. How many shells does {who} have?"},
            ],
            "answer": a * b,
        }
    )
train = Dataset.from_list(problems)
gold = train["answer"]


def near_the_answer(prompts, completions, **kwargs):
    scores = []
    for i, completion in enumerate(completions):
        numbers = [int(n) for n in re.findall(r"\d{1,2}", completion[0]["content"])]
        target = gold[i]
        scores.append(1.0 - min((abs(n - target) for n in numbers), default=100) / 100)
    return scores


def ends_well(completions, **kwargs):
    return [0.2 * ("####" in c[0]["content"]) for c in completions]


if __name__ == "__main__":
    trainer = GRPOTrainer(
        model=os.path.join(here, "tiny"),
        reward_funcs=[near_the_answer, ends_well],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            learning_rate=1e-4,
            num_generations=4,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_completion_length=40,
            max_steps=5,
            scale_rewards="none",
            loss_type="dr_grpo",
            seed=11,
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
        ),
        train_dataset=train,
    )
    trainer.train()
