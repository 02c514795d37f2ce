"""GRPO for code answers; a sandbox pool scores the completions."""

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Sandbox:
    """Offline double of the execution service: scores by static checks, takes time in proportion to the program."""

    def __init__(self, seconds_per_char=0.0015):
        self.seconds_per_char = seconds_per_char

    def run(self, program, tests):
        time.sleep(self.seconds_per_char * len(program))
        score = 0.0
        for needle in tests:
            score += program.count(needle)
        score += 0.2 * sum(ch.isdigit() for ch in program)
        return score / (1 + 0.02 * len(program))


class SandboxReward:
    __name__ = "sandbox"

    def __init__(self, workers=4, timeout=20):
        self.sandbox = Sandbox()
        self.pool = ThreadPoolExecutor(max_workers=workers)
        self.timeout = timeout

    def __call__(self, completions, tests, **kwargs):
        programs = [c[0]["content"] for c in completions]
        jobs = [self.pool.submit(self.sandbox.run, program, t) for program, t in zip(programs, tests)]
        scores = []
        for job in as_completed(jobs, timeout=self.timeout):
            try:
                scores.append(job.result())
            except Exception:
                scores.append(0.0)
        return scores


def main():
    specs = [("print 3 + 4", ["3", "4"]), ("multiply 6 by 7", ["*", "6"]), ("loop to 10", ["10", "<"]),
             ("return 12", ["12", "="]), ("add 5 and 9", ["+", "9"]), ("compare 2 and 3", ["<", "2"])]
    data = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Code: {task}"}], "tests": tests} for task, tests in specs]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=3,
        learning_rate=2e-4, per_device_train_batch_size=8, num_generations=8, gradient_accumulation_steps=2,
        max_completion_length=24, temperature=1.1, gradient_checkpointing=False, logging_steps=1,
    )
    GRPOTrainer(model=MODEL, reward_funcs=SandboxReward(), args=args, train_dataset=data).train()


if __name__ == "__main__":
    main()
