"""What a rollout of two turns costs outside the sampler, one process on one core.

    python -m benchmarks.bench_rollouts [--verifiers] [--profile]

Scripted replies (look the first hop up, answer) cost no model; their own time is subtracted. Each
repeat has a new environment, so that every row's retrieval index is built in it. --verifiers measures
its train path in process beside ours: same rows, same replies, the same tokenizer of Qwen3's format.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rlvr_debug.audit import ScriptedSampler
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import read_rows
from rlvr_debug.environments import build_environment, task_of
from rlvr_debug.environments.base import Environment
from rlvr_debug.sampling.base import Request, Sample
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import rollout
from rlvr_debug.study.params import load_params

_PARAMS = load_params(ROOT / "params.yaml")
_oracle = task_of("musique").policies["oracle"]


class TimedSampler:
    def __init__(self, chat: Chat) -> None:
        # its turn 0 looks the first hop up, its turn `hops` answers
        self._inner = ScriptedSampler(lambda row, turn: _oracle(row, turn * row.hops), chat)
        self.seconds = 0.0
        self.turns = 0

    def sample(
        self, requests: list[Request], *, temperature: float, max_new_tokens: int, seed: int
    ) -> list[Sample]:
        start = time.process_time()
        samples = self._inner.sample(
            requests, temperature=temperature, max_new_tokens=max_new_tokens, seed=seed
        )
        self.seconds += time.process_time() - start
        self.turns += len(requests)
        return samples


Run = Callable[[Environment, TimedSampler], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--concurrent", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--group", type=int, default=1, help="rollouts of each row")
    parser.add_argument("--rows", type=Path, help="rows of MuSiQue; without, synthetic ones")
    parser.add_argument("--verifiers", action="store_true", help="measure its train path too")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    found = (
        read_rows("musique", args.rows)
        if args.rows
        else list(task_of("musique").synthetic(_PARAMS.data_settings("musique")))
    )
    rows: list[Any] = [row for row in found for _ in range(args.group)][: args.concurrent]
    tiny = Chat(ROOT / "models" / "tiny")
    _measure("ours, tiny model's tokenizer", tiny, len(rows), args, _ours(rows, tiny))
    if args.verifiers:
        from tests.qwen3_tokenizer import build_qwen3_tokenizer

        with tempfile.TemporaryDirectory() as folder:
            path = build_qwen3_tokenizer(Path(folder), [str(row.to_json()) for row in rows])
            qwen3 = Chat(path)
            _measure("ours, Qwen3's format", qwen3, len(rows), args, _ours(rows, qwen3))
            _measure("verifiers, Qwen3's format", qwen3, len(rows), args, _verifiers(rows, path))


def _ours(rows: list[Any], chat: Chat) -> Run:
    return lambda environment, sampler: rollout(
        rows, environment, chat, sampler, temperature=1.0, seed=0
    )


def _verifiers(rows: list[Any], tokenizer: Path) -> Run:
    from rlvr_debug.tasksets import TASKSETS
    from tests.verifiers_loop import trace_rollouts

    def run(environment: Environment, sampler: TimedSampler) -> object:
        task = TASKSETS["musique"].task_type()
        data = [task.data_type()(prompt=environment.messages(row), row=row) for row in rows]
        tasks = [task(each) for each in data]
        for task in tasks:
            task.environment = environment  # one for all, as in ours
        return trace_rollouts(tasks, tokenizer, sampler, temperature=1.0)

    return run


def _measure(name: str, chat: Chat, rows: int, args: argparse.Namespace, run: Run) -> None:
    def once(profiler: cProfile.Profile | None = None) -> float:
        environment = build_environment("musique", _PARAMS.settings("musique"))
        sampler = TimedSampler(chat)
        start = time.process_time()
        if profiler:
            profiler.runcall(run, environment, sampler)
        else:
            run(environment, sampler)
        spent = time.process_time() - start - sampler.seconds
        assert sampler.turns == 2 * rows
        return 1000 * spent / rows

    once()
    times = [once() for _ in range(args.repeats)]
    print(
        f"{name}: {statistics.median(times):.2f} ms of processor time a rollout "
        f"({min(times):.2f} to {max(times):.2f} in {args.repeats} repeats of {rows} rollouts)"
    )
    if args.profile:
        profiler = cProfile.Profile()
        for _ in range(args.repeats):
            once(profiler)
        pstats.Stats(profiler).strip_dirs().sort_stats("cumulative").print_stats(40)


if __name__ == "__main__":
    main()
