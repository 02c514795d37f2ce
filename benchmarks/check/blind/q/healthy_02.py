"""GRPO with a tournament: each rollout's reward is the share of its siblings that it beats."""
import asyncio
import os
import tempfile
from collections import defaultdict

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def strength(text):
    return len(set(text)) - 0.2 * len(text)


def tournament(prompts, completions, **kwargs):
    """Share of the other rollouts of the same prompt that are weaker (ties count half)."""
    groups = defaultdict(list)
    for i, prompt in enumerate(prompts):
        groups[prompt[-1]["content"]].append(i)
    scores = [0.0] * len(prompts)
    values = [strength(c[0]["content"]) for c in completions]
    for members in groups.values():
        for i in members:
            wins = [1.0 if values[i] > values[j] else 0.5 * (values[i] == values[j]) for j in members if j != i]
            scores[i] = sum(wins) / max(len(wins), 1)
    return scores


async def judge_one(text):
    await asyncio.sleep(0.001 * (len(text) % 7))
    return 1.0 if text.strip() and text.strip()[-1].isalnum() else 0.0


async def async_judge(completions, **kwargs):
    return await asyncio.gather(*(judge_one(c[0]["content"]) for c in completions))


people = ["Aldora", "Bridora", "Cordora", "Dandora", "Eldora", "Fendora", "Gardora", "Holdora"]
relations = ["mentor", "rival", "spouse", "patron", "cousin"]
rows = [
    {"prompt": [{"role": "user", "content": f"Who is the {relations[i % 5]} of {people[i % 8]}?"}]} for i in range(40)
]

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    reward_weights=[1.0, 0.5],
    scale_rewards="none",
    temperature=1.2,
)
trainer = GRPOTrainer(
    model=MODEL, reward_funcs=[tournament, async_judge], args=args, train_dataset=Dataset.from_list(rows)
)
trainer.train()
