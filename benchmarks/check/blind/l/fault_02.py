"""GRPO against a (mocked) judge service: thread pool, timeouts, retries with backoff."""
import hashlib
import os
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class JudgeConfig:
    workers: int = 8
    retries: int = 3
    backoff_s: float = 0.002
    timeout_s: float = 20.0
    want_digits: int = 6


class JudgeError(RuntimeError):
    pass


class LocalJudge:
    """Stands in for the HTTP endpoint. Longer texts take longer to judge; some first calls fail."""

    def __init__(self, cfg):
        self.cfg = cfg

    def post(self, question, answer, attempt):
        digest = hashlib.md5((question + answer).encode()).digest()
        time.sleep(0.003 + 0.0004 * len(answer) + (digest[0] % 4) * 0.002)
        if attempt == 0 and digest[1] % 7 == 0:
            raise JudgeError("503")
        digits = sum(c.isdigit() for c in answer)
        return {"score": 1.0 - min(abs(digits - self.cfg.want_digits), 10) / 10 + 0.05 * len(set(answer)) / 20}


class JudgeClient:
    def __init__(self, cfg):
        self.cfg = cfg
        self.service = LocalJudge(cfg)
        self.pool = ThreadPoolExecutor(max_workers=cfg.workers)

    def _score_one(self, question, answer):
        for attempt in range(self.cfg.retries + 1):
            try:
                return float(self.service.post(question, answer, attempt)["score"])
            except JudgeError:
                if attempt == self.cfg.retries:
                    return 0.0
                time.sleep(self.cfg.backoff_s * 2**attempt)

    def score(self, questions, answers):
        futures = [self.pool.submit(self._score_one, q, a) for q, a in zip(questions, answers)]
        return [f.result() for f in as_completed(futures, timeout=self.cfg.timeout_s)]


class JudgeReward:
    """Callable reward; the name is what shows up in the dashboards."""

    __name__ = "judge"

    def __init__(self, client):
        self.client = client

    def __call__(self, prompts, completions, log_metric=None, **kwargs):
        start = time.perf_counter()
        scores = self.client.score([p[-1]["content"] for p in prompts], [c[0]["content"] for c in completions])
        if log_metric is not None:
            log_metric("judge/latency_s", time.perf_counter() - start)
        return scores


def main():
    random.seed(3)
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"What is {a} + {b}?"}]} for a in (3, 12, 47) for b in (4, 9, 21, 60)]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        num_generations=8,
        max_completion_length=20,
        max_steps=4,
        learning_rate=2e-4,
        warmup_steps=1,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        seed=3,
    )
    trainer = GRPOTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[JudgeReward(JudgeClient(JudgeConfig()))],
        args=args,
        train_dataset=dataset,
    )
    trainer.train()
    print([round(h["reward"], 3) for h in trainer.state.log_history if "reward" in h])


if __name__ == "__main__":
    main()
