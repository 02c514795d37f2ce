import asyncio, os, random, tempfile
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

_cache: dict[tuple[str, str], float] = {}


async def _remote_judge(task: str, text: str) -> float:
    key = (task, text)
    if key not in _cache:
        await asyncio.sleep(random.random() / 100)
        _cache[key] = round(1.0 - abs(len(text) - 12) / 24, 4)
    return _cache[key]


async def judge(completions, task, **kwargs):
    return await asyncio.gather(*(_remote_judge(t, c[0]["content"]) for t, c in zip(task, completions)))


def math_reward(completions, task, gold, **kwargs):
    return [
        (sum(c[0]["content"].count(d) for d in g) / 3 if t == "math" else None)
        for c, t, g in zip(completions, task, gold)
    ]


def prose_reward(completions, task, log_metric=None, **kwargs):
    values = [
        (sum(ch.isalpha() for ch in c[0]["content"]) / 10 if t == "prose" else None)
        for c, t in zip(completions, task)
    ]
    if log_metric:
        log_metric("prose_rows", float(sum(v is not None for v in values)))
    return values


rows = []
for i in range(28):
    kind = ("math", "prose")[i % 2]
    question = f"{i} + 4" if kind == "math" else f"Write a word with {i % 5 + 3} letters"
    rows.append({"prompt": [{"role": "user", "content": question}], "task": kind, "gold": str(i + 4)})

trainer = GRPOTrainer(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    [judge, math_reward, prose_reward],
    GRPOConfig(
        tempfile.mkdtemp(), reward_weights=[0.2, 1.0, 0.7], per_device_train_batch_size=16, num_generations=4,
        max_completion_length=24, max_steps=4, learning_rate=1e-4, logging_steps=1,
        use_cpu=True, bf16=False, report_to=[], save_strategy="no",
    ),
    Dataset.from_list(rows),
)
trainer.train()
