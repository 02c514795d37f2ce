import asyncio
import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
SYSTEM = "Solve the problem step by step. End with #### and the number."


class JudgeClient:
    """Stands in for an HTTP judge: longer texts take longer to grade."""

    def __init__(self, max_parallel=16):
        self.max_parallel = max_parallel

    async def grade(self, gate, text):
        async with gate:
            await asyncio.sleep(0.003 * len(text))
        digits = sum(ch.isdigit() for ch in text)
        return digits / 10.0 + 0.2 * text.count("=") - 0.01 * text.count("[")

    async def grade_all(self, texts):
        gate = asyncio.Semaphore(self.max_parallel)
        jobs = [asyncio.create_task(self.grade(gate, text)) for text in texts]
        grades = []
        for job in asyncio.as_completed(jobs):
            grades.append(await job)
        return grades


judge = JudgeClient()


async def judge_reward(completions, **kwargs):
    return await judge.grade_all([c[-1]["content"] for c in completions])


def format_reward(completions, **kwargs):
    return [0.25 if "The answer is" in c[-1]["content"] or "####" in c[-1]["content"] else 0.0 for c in completions]


def build_dataset(n=48):
    rng = random.Random(7)
    out = []
    for _ in range(n):
        a, b, price = rng.randint(2, 20), rng.randint(2, 9), rng.randint(2, 6)
        question = (
            f"Cleo has {a} boxes with {b} cards each. Each costs {price} coins. How many coins do they cost together?"
        )
        out.append({"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]})
    return Dataset.from_list(out)


if __name__ == "__main__":
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="judge_"),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=12,
        num_generations=6,
        max_completion_length=56,
        learning_rate=5e-5,
        lr_scheduler_type="constant",
        reward_weights=[1.0, 0.5],
        logging_steps=1,
        max_steps=4,
        save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=os.path.join(HERE, "tiny"),
        args=config,
        reward_funcs=[judge_reward, format_reward],
        train_dataset=build_dataset(),
    )
    trainer.train()
    print({k: v for k, v in trainer.state.log_history[-2].items() if k.startswith("rewards/")})
