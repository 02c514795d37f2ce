"""Our sampler beside Hugging Face generate, tokens a second of processor time on one core.

    python -m benchmarks.bench_sampling [--sizes tiny small medium] [--repeats 5]

The same model, prompts and lengths (replay.py). `turns`: conversations with tools; generate() keeps no
cache between turns, and TRL's tool loop calls it so, with the whole history. `one reply`: as long as
these conversations, in one call. Ours gives log-probabilities too; `gap` is how far they are from the
model's. In one reply, which the model was not made for, float32 itself is 6e-5 from float64.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.replay import (
    SIZES,
    Conversation,
    Forced,
    build_model,
    forced_processor,
    interleaved,
    one_reply,
    padded,
    recorded,
    replay,
    replayed,
)

TOLERANCE = 1e-5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", default=["tiny", "small"], choices=SIZES)
    args = parser.parse_args()
    torch.set_num_threads(1)

    print(f"{'model':<7} {'batch':<6} {'lengths':<10} {'ours':<26} {'generate':<26} times  gap")
    for size in args.sizes:
        with tempfile.TemporaryDirectory() as folder:
            model, _ = build_model(size, Path(folder))
        sampler = Forced(model.config.to_dict(), model.state_dict(), {model.config.eos_token_id})
        for prompts in (1, 8):
            turns = recorded(prompts, 8)
            for name, conversations in (
                ("turns", turns),
                ("one reply", [one_reply(each) for each in turns]),
            ):
                gap = _gap(model, sampler, conversations)
                assert name != "turns" or gap < TOLERANCE, f"log-probabilities differ by {gap}"
                seconds = _seconds(model, sampler, conversations, args.repeats)
                spreads = (
                    f"{median(each):.3f} s ({min(each):.3f} to {max(each):.3f})"
                    for each in seconds.values()
                )
                columns = " ".join(f"{each:<26}" for each in spreads)
                ratio = median(seconds["generate"]) / median(seconds["ours"])
                print(
                    f"{size:<7} {8 * prompts:<6} {name:<10} {columns} {ratio:<6.2f} {gap:.1e}",
                    flush=True,
                )


def _seconds(
    model: Any, sampler: Forced, conversations: list[Conversation], repeats: int
) -> dict[str, list[float]]:
    def ours() -> None:
        replayed(conversations, sampler)

    def generate() -> None:
        replay(conversations, lambda _, *given: _generate(model, *given))

    generate()  # once, to warm up
    return interleaved({"ours": ours, "generate": generate}, repeats)


@torch.no_grad()
def _generate(model: Any, histories: list[list[int]], lengths: list[int]) -> list[list[int]]:
    width = max(map(len, histories))
    found = model.generate(
        input_ids=padded(histories, "left", model.config.pad_token_id),
        attention_mask=padded([[1] * len(history) for history in histories], "left"),
        do_sample=True,
        top_k=0,
        max_new_tokens=max(lengths),
        logits_processor=[forced_processor(width, lengths, model.config.eos_token_id)],
    )
    return [row[width : width + n].tolist() for row, n in zip(found, lengths, strict=True)]


def _gap(model: Any, sampler: Forced, conversations: list[Conversation]) -> float:
    """Between the sampler's log-probabilities and the model's, the largest; not of forced ends."""
    gaps = []
    for tokens, mask, values in zip(*replayed(conversations, sampler), strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([tokens])).logits[0, :-1]
        logits[:, model.config.eos_token_id] = -torch.inf
        expected = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[1:, None])[:, 0]
        wanted = expected[torch.tensor(mask[1:])]
        gaps.append((wanted - torch.tensor(values))[wanted.isfinite()].abs().max())
    return float(torch.stack(gaps).max())


if __name__ == "__main__":
    main()
