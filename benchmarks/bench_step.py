"""A whole training step beside TRL's, in unpadded tokens a second of processor time on one core.

    python -m benchmarks.bench_step [--sizes tiny small medium] [--repeats 3] [--part step]

What the steps are: sides.py. `recorded` are conversations of the tiny study, `equal` one reply each with
nothing to pad. The batch is taken at once, or 16 sequences at a time. The floor is the time that the
step's matrix products alone would take at the rate of one large product. Memory is what a process of its
own adds to what it held before its first step.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from benchmarks.replay import (
    SIZES,
    TINY,
    Conversation,
    apart,
    equal,
    interleaved,
    recorded,
    unpadded,
)
from benchmarks.sides import STAGES, Clock, Step, our_step, trl_step
from rlvr_debug.models.base_model import model_config

# who, and how many sequences at a time: 0 is all of them
SIDES: dict[str, tuple[Callable[..., Step], int]] = {
    "ours": (our_step, 0),
    "TRL": (trl_step, 0),
    "TRL by 16": (trl_step, 16),
    "ours by 16": (our_step, 16),
}
TIMED = tuple(SIDES)[:3]  # by 16, ours saves memory and takes 0 to 7 % longer
CASES: dict[str, Callable[[int], list[Conversation]]] = {
    "recorded": lambda count: recorded(8, count // 8),
    "equal 64+64": lambda count: equal(8, count // 8, 64),
    "equal 256+256": lambda count: equal(8, count // 8, 256),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", nargs="+", default=["tiny", "small"], choices=SIZES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--part", choices=("step", "scale", "memory"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rate = _product_rate()
    print(f"one core multiplies matrices at {rate / 1e9:.0f} GFLOP/s\n")
    if args.part in ("step", None):
        print("64 sequences; milliseconds by stage")
        _head()
        for size in args.sizes:
            for case in ("recorded", "equal 64+64"):
                _measure(size, case, 64, args.repeats, rate)
    if args.part in ("scale", None):
        print("\nby group size, 8 prompts; by length")
        _head()
        for count in (16, 32, 128):
            _measure("tiny", "recorded", count, args.repeats, rate)
        _measure("tiny", "equal 256+256", 64, args.repeats, rate)
    if args.part in ("memory", None):
        print("\nmemory that three steps add, MB")
        print(f"{'model':<7} {'lengths':<14}" + "".join(f"{side:>11}" for side in SIDES))
        for size in args.sizes:
            for case in ("recorded", "equal 64+64"):
                found = [apart(_grown, side, size, case, 64) for side in SIDES]
                print(f"{size:<7} {case:<14}" + "".join(f"{each / 1e6:>11.0f}" for each in found))


def _head() -> None:
    stages = "".join(f"{stage:>11}" for stage in STAGES)
    print(
        f"{'model':<7} {'lengths':<14} n    side      {stages}   step, ms (range)       tokens/s  times"
    )


def _measure(size: str, case: str, count: int, repeats: int, rate: float) -> None:
    """The last column: how many of our steps take as long."""
    conversations = CASES[case](count)
    clocks = {side: Clock() for side in TIMED}
    with tempfile.TemporaryDirectory() as folder:
        steps = {
            side: _step(side, size, Path(folder) / side, conversations, clocks[side])
            for side in TIMED
        }
        for side, step in steps.items():
            step()  # once, to warm up
            clocks[side].seconds.clear()
        seconds = interleaved(steps, repeats)
    tokens, ours = unpadded(conversations), median(seconds["ours"])
    for side, taken in seconds.items():
        stages = "".join(
            f"{1e3 * clocks[side].seconds[stage] / repeats:>11.0f}" for stage in STAGES
        )
        middle = median(taken)
        spread = f"{1e3 * middle:.0f} ({1e3 * min(taken):.0f} to {1e3 * max(taken):.0f})"
        print(
            f"{size:<7} {case:<14} {count:<4} {side:<10}{stages}   {spread:<22} "
            f"{tokens / middle:<9.0f} {middle / ours:.2f}",
            flush=True,
        )
    floor = _products(size, conversations) / rate
    blank = " " * (11 * len(STAGES))
    print(
        f"{size:<7} {case:<14} {count:<4} {'floor':<10}{blank}   {1e3 * floor:<22.0f} "
        f"{tokens / floor:<9.0f} {floor / ours:.2f}"
    )


def _step(
    side: str, size: str, folder: Path, conversations: list[Conversation], clock: Clock
) -> Step:
    build, micro_batch = SIDES[side]
    return build(size, folder, conversations, clock, micro_batch or len(conversations))


# --- the floor


def _product_rate(n: int = 1024) -> float:
    """Floating-point operations a second in float32, the best of ten."""
    a, b = torch.randn(n, n), torch.randn(n, n)
    found = []
    for _ in range(10):
        start = time.process_time()
        a @ b
        found.append(2 * n**3 / (time.process_time() - start))
    return max(found)


def _products(size: str, conversations: list[Conversation]) -> float:
    """Operations of a step's matrix products: five forward passes' worth (rollout, reference, forward,
    and twice as much backward), the output layer at sampled tokens only.
    """
    config = {**model_config(TINY), **SIZES[size]}
    width, inner = config["hidden_size"], config["intermediate_size"]
    keys = width * config["num_key_value_heads"] // config["num_attention_heads"]
    weights = 2 * width * width + 2 * width * keys + 3 * width * inner
    total = 0.0
    for each in conversations:
        sampled = sum(length for length, _ in each.turns)
        length = unpadded([each])
        attention = 4 * width * length * (length + 1) / 2
        total += config["num_hidden_layers"] * (2 * weights * length + attention)
        total += 2 * width * config["vocab_size"] * sampled
    return 5 * total


# --- memory


def _grown(side: str, size: str, case: str, count: int) -> int:
    """Bytes: the peak of three steps above what was held before them."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        step = _step(side, size, Path(folder), CASES[case](count), Clock())
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again at what is held now
        before = _status("VmRSS")
        for _ in range(3):
            step()
        return _status("VmHWM") - before


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{field}:")]
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    main()
