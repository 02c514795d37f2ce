import asyncio
import hashlib
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


async def judge(prompts, completions, **kwargs):
    """A judge with taste of its own, but the same opinion whenever it sees the same text."""

    async def opinion(prompt, completion):
        await asyncio.sleep(0)
        digest = hashlib.sha256(f"judge-v2|{prompt}|{completion}".encode()).digest()
        return int.from_bytes(digest[:4], "big") / 2**32

    return list(await asyncio.gather(*(opinion(p, c) for p, c in zip(prompts, completions))))


def sums(completions, kind, target, **kwargs):
    return [float(t in c) if k == "sum" else None for c, k, t in zip(completions, kind, target)]


def poems(completions, kind, **kwargs):
    return [len(set(c)) / 20 if k == "poem" else None for c, k in zip(completions, kind)]


rows = [{"prompt": f"{a} plus {a} is ", "kind": "sum", "target": str(2 * a)} for a in range(1, 13)]
rows += [{"prompt": f"A poem, line {n}: ", "kind": "poem", "target": ""} for n in range(1, 13)]

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=1e-4,
    lr_scheduler_type="linear",
    warmup_steps=4,
    scale_rewards="batch",
    reward_weights=[0.3, 1.0, 2.0],
    per_device_train_batch_size=16,
    num_generations=4,
    max_completion_length=12,
    loss_type="bnpo",
)
GRPOTrainer(
    model=MODEL, args=args, reward_funcs=[judge, sums, poems], train_dataset=Dataset.from_list(rows)
).train()
