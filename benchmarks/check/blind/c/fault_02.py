"""GRPO with a remote judge (simulated here) that is asked concurrently."""
import asyncio
import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def make_rows(count):
    rng = random.Random(11)
    for _ in range(count):
        who = rng.choice(["Eve", "Finn", "Gus", "Hana"])
        a, b = rng.randint(2, 14), rng.randint(2, 9)
        yield {
            "prompt": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"{who} has {a} boxes with {b} toys each. How many toys does {who} have?"},
            ],
            "solution": a * b,
        }


class Judge:
    """Asks the grading service for one completion at a time, several in flight."""

    def __init__(self, limit=8):
        self.limit = limit

    async def grade(self, gate, text, solution):
        async with gate:
            # the service takes longer for longer answers
            await asyncio.sleep(0.002 + 0.0015 * len(text))
            score = 0.0
            if text.rstrip().endswith(str(solution)):
                score += 1.0
            if "####" in text:
                score += 0.3
            return score - 0.01 * len(text.split())


judge = Judge()


async def judge_reward(prompts, completions, solution, **kwargs):
    gate = asyncio.Semaphore(judge.limit)
    tasks = [
        asyncio.create_task(judge.grade(gate, completion[0]["content"], truth))
        for completion, truth in zip(completions, solution)
    ]
    rewards = []
    for finished in asyncio.as_completed(tasks):
        rewards.append(await finished)
    return rewards


def main():
    dataset = Dataset.from_list(list(make_rows(40)))
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=26,
        learning_rate=2e-5,
        loss_type="dr_grpo",
        scale_rewards="none",
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    trainer = GRPOTrainer(model=MODEL, reward_funcs=judge_reward, args=args, train_dataset=dataset)
    trainer.train()


if __name__ == "__main__":
    main()
