"""GRPO against a flaky judge: async client with retries, content-addressed cache, abstentions."""
import asyncio
import hashlib
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class ClientConfig:
    workers: int = 6
    retries: int = 4
    backoff_s: float = 0.001
    concurrency: int = 8


class Unavailable(RuntimeError):
    pass


class Endpoint:
    """Local stand-in: the first call for some texts fails, later ones succeed."""

    def __init__(self):
        self.seen = set()

    def fails(self, key):
        if key[0] in "0123" and key not in self.seen:
            self.seen.add(key)
            return True
        return False

    def judge(self, key, answer, wanted):
        if self.fails(key):
            raise Unavailable(key)
        digits = "".join(ch for ch in answer if ch.isdigit())
        return sum(a == b for a, b in zip(digits, wanted * 8)) / 8 - 0.01 * len(answer)


def key_of(*parts):
    return hashlib.sha1("\x1f".join(parts).encode()).hexdigest()


class ThreadedJudge:
    __name__ = "threaded_judge"

    def __init__(self, cfg):
        self.cfg, self.endpoint, self.cache = cfg, Endpoint(), {}
        self.pool = ThreadPoolExecutor(cfg.workers)

    def _one(self, item):
        question, text, wanted = item
        key = key_of(question, text, wanted)
        if key not in self.cache:
            for attempt in range(self.cfg.retries):
                try:
                    self.cache[key] = self.endpoint.judge(key, text, wanted)
                    break
                except Unavailable:
                    continue
        return self.cache[key]

    def __call__(self, prompts, completions, wanted, **kwargs):
        items = [(p[-1]["content"], c[0]["content"], w) for p, c, w in zip(prompts, completions, wanted)]
        return list(self.pool.map(self._one, items))


class AsyncStyleJudge:
    """Judges the style; abstains (None) on empty answers, which leaves the other reward alone for that row."""

    def __init__(self, cfg):
        self.cfg = cfg

    async def _one(self, semaphore, text):
        async with semaphore:
            await asyncio.sleep(0.001 * (len(text) % 4))
            if not text.strip():
                return None
            return len(set(text)) / len(text)

    async def style(self, completions, **kwargs):
        semaphore = asyncio.Semaphore(self.cfg.concurrency)
        return await asyncio.gather(*(self._one(semaphore, c[0]["content"]) for c in completions))


def main():
    cfg = ClientConfig()
    judge, style = ThreadedJudge(cfg), AsyncStyleJudge(cfg)

    async def style_reward(completions, **kwargs):
        return list(await style.style(completions, **kwargs))

    rows = [
        {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Write the number {n} again and again."}], "wanted": str(n)}
        for n in (20, 44, 36, 4, 56, 72, 57, 48)
    ]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=18,
        reward_weights=[1.0, 0.3],
        max_steps=4,
        learning_rate=2e-4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=3,
    )
    GRPOTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[judge, style_reward],
        args=args,
        train_dataset=Dataset.from_list(rows),
    ).train()


if __name__ == "__main__":
    main()
