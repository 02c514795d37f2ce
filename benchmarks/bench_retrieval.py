"""Milliseconds of retrieval over real rows: the index of a row's paragraphs, and one query."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlvr_debug.data.prepare import read_rows
from rlvr_debug.environments.musique.retrieval import build_retrieval
from rlvr_debug.environments.musique.rows import MuSiQueRow
from rlvr_debug.processes import run_main

TOP_N = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, help="JSONL in MuSiQue's official schema")
    parser.add_argument(
        "model", nargs="?", help="of sentence-transformers: adds semantic and hybrid"
    )
    args = parser.parse_args()
    rows = [row for row in read_rows("musique", args.rows) if isinstance(row, MuSiQueRow)]
    queries = sum(1 + row.hops for row in rows)
    print(f"{len(rows)} rows, {queries} queries: each row's question and those of its hops")
    for strategy in ("bm25", "semantic", "hybrid") if args.model else ("bm25",):
        build = build_retrieval(strategy, args.model or "")
        build(rows[0], TOP_N)("warm up")
        index, query = [], []
        for row in rows:
            retrieve, seconds = _timed(build, row, TOP_N)
            index.append(seconds)
            for text in (row.question, *(hop.question for hop in row.question_decomposition)):
                query.append(_timed(retrieve, text)[1])
        print(f"{strategy}: index {_spread(index)}, query {_spread(query)}")


def _timed(call: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """What the call returns, and its seconds."""
    start = time.perf_counter()
    value = call(*args)
    return value, time.perf_counter() - start


def _spread(seconds: list[float]) -> str:
    """In milliseconds. Mean and median differ by what else the machine was doing."""
    mean, median = 1e3 * statistics.fmean(seconds), 1e3 * statistics.median(seconds)
    p95 = 1e3 * statistics.quantiles(seconds, n=20)[-1]
    return f"{median:.2f} ms (mean {mean:.2f}, 95% within {p95:.2f})"


if __name__ == "__main__":
    run_main(main)
