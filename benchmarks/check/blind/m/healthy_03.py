"""A streamed mixture of two tasks, with rewards that only apply to their own task, one of them asynchronous (a judge
behind an API in the real run), combined as in GDPO."""
import asyncio
import os
import re
import tempfile

from datasets import IterableDataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def stream():
    for i in range(400):
        a, b = 2 + i % 8, 2 + (i // 8) % 7
        if i % 3:
            yield {"prompt": f"x={a}; y={b}; x*y=", "task": "math", "answer": a * b}
        else:
            yield {"prompt": f"def f{i}(a, b):", "task": "style", "answer": 0}


async def judge(completions, task, **kwargs):
    """Scores the style task; the calls run at the same time and come back in any order."""

    async def ask(text):
        await asyncio.sleep(0.001 * (len(text) % 5))
        return len(set(text)) / max(len(text), 1)

    async def score(text, kind):
        return await ask(text) if kind == "style" else None

    return list(await asyncio.gather(*(score(t, k) for t, k in zip(completions, task))))


def product(completions, task, answer, log_metric=None, log_extra=None, **kwargs):
    scores = []
    for text, kind, target in zip(completions, task, answer):
        if kind != "math":
            scores.append(None)
            continue
        found = re.match(r"\d{1,2}", text)
        scores.append(1 - min(abs(int(found.group()) - target) / target, 1.5) if found else -0.5)
    given = [s for s in scores if s is not None]
    if log_metric and given:
        log_metric("math/best", max(given))
    if log_extra:
        log_extra("task", list(task))
    return scores


def ends(completion_ids, **kwargs):
    return [1.0 if ids[-1] == 258 else 0.0 for ids in completion_ids]


if __name__ == "__main__":
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[judge, product, ends],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=8,
            gradient_accumulation_steps=4,
            num_generations=8,
            max_completion_length=20,
            reward_weights=[1.0, 2.0, 0.3],
            multi_objective_aggregation="normalize_then_sum",
            loss_type="bnpo",
            learning_rate=1e-4,
            max_steps=3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=IterableDataset.from_generator(stream),
        processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
    )
    trainer.train()
