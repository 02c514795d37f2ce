"""Mistakes in what is paid for, in training and held out.

Rewards that are drawn come from the rollout itself, so that the same one is judged alike again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.mistakes.plants.setup import Parts, Setup, judged

__all__ = [
    "affine",
    "at_least",
    "at_most",
    "brevity",
    "calls_cost",
    "constant",
    "format_only",
    "group_score",
    "heldout_judge",
    "heldout_prompt",
    "inverted",
    "judge_fails",
    "length_bonus",
    "magic_word",
    "noisy_judge",
    "rarely_right",
    "reward_jitter",
    "scores_shifted",
]


def _draw(rollout: Any, what: str) -> random.Random:
    return random.Random(f"{what} {rollout.row.id} {rollout.transcript.replies}")


def constant(setup: Setup, value: float) -> Setup:
    return judged(setup, lambda rollout, parts: dict.fromkeys(parts, value))


def noisy_judge(setup: Setup, share: float) -> Setup:
    def judge(rollout: Any, parts: Parts) -> Parts:
        draw = _draw(rollout, "judge")
        if draw.random() >= share:
            return parts
        return dict.fromkeys(parts, float(draw.random() < 0.5))

    return judged(setup, judge)


def inverted(setup: Setup, _: float) -> Setup:
    return judged(setup, lambda rollout, parts: {k: 1 - v for k, v in parts.items()})


def judge_fails(setup: Setup, share: float) -> Setup:
    """Right answers of most rows are not recognised."""

    def judge(rollout: Any, parts: Parts) -> Parts:
        fails = random.Random(f"row {rollout.row.id}").random() < share
        return dict.fromkeys(parts, 0.0) if fails else parts

    return judged(setup, judge)


def rarely_right(setup: Setup, share: float) -> Setup:
    """As for a task that the model solves once in a while."""

    def judge(rollout: Any, parts: Parts) -> Parts:
        hard = _draw(rollout, "hard").random() < share
        return dict.fromkeys(parts, 0.0) if hard else parts

    return judged(setup, judge)


def reward_jitter(setup: Setup, size: float) -> Setup:
    """The answer counts for nothing; the judge's numbers differ by `size`."""

    def judge(rollout: Any, parts: Parts) -> Parts:
        drawn = _draw(rollout, "jitter").random()
        return dict.fromkeys(parts, 0.6 + size * drawn)

    return judged(setup, judge)


def affine(setup: Setup, numbers: Sequence[float]) -> Setup:
    times, plus = numbers
    return judged(setup, lambda rollout, parts: {k: times * v + plus for k, v in parts.items()})


def at_least(setup: Setup, floor: float) -> Setup:
    return judged(setup, lambda rollout, parts: {k: max(v, floor) for k, v in parts.items()})


def at_most(setup: Setup, ceiling: float) -> Setup:
    return judged(setup, lambda rollout, parts: {k: min(v, ceiling) for k, v in parts.items()})


def format_only(setup: Setup, _: float) -> Setup:
    def judge(rollout: Any, parts: Parts) -> Parts:
        return dict.fromkeys(parts, float("####" in rollout.transcript.final))

    return judged(setup, judge)


def _words(rollout: Any) -> int:
    return sum(len(s.ids) for s in rollout.segments if s.role == "assistant")


def brevity(setup: Setup, weight: float) -> Setup:
    def judge(rollout: Any, parts: Parts) -> Parts:
        return {**parts, "brevity": weight * max(0.0, 1 - _words(rollout) / 40)}

    return judged(setup, judge)


def length_bonus(setup: Setup, weight: float) -> Setup:
    def judge(rollout: Any, parts: Parts) -> Parts:
        return {**parts, "thoroughness": weight * min(1.0, _words(rollout) / 48)}

    return judged(setup, judge)


def magic_word(setup: Setup, weight: float) -> Setup:
    """Paid for what the base model now and then writes: as many equals signs as possible."""

    def judge(rollout: Any, parts: Parts) -> Parts:
        count = sum(reply.count("=") for reply in rollout.transcript.replies)
        return {**parts, "shows_work": weight * min(1.0, count / 6)}

    return judged(setup, judge)


def calls_cost(setup: Setup, cost: float) -> Setup:
    def judge(rollout: Any, parts: Parts) -> Parts:
        calls = max(0, rollout.turns - 1)
        return {k: v - cost * calls / 3 for k, v in parts.items()}

    return judged(setup, judge)


def scores_shifted(setup: Setup, by: int) -> Setup:
    """Each prompt's group has the scores of another one's, in another order."""

    def shifted(rewards: list[float]) -> list[float]:
        size = setup.context["group_size"] + 1
        return [*rewards[-size * by :], *rewards[: -size * by]]

    return replace(setup, whole=(*setup.whole, shifted))


def group_score(setup: Setup, _: float) -> Setup:
    def one(rewards: list[float]) -> list[float]:
        size = setup.context["group_size"]
        return [rewards[place - place % size] for place in range(len(rewards))]

    return replace(setup, whole=(*setup.whole, one))


def heldout_judge(setup: Setup, scale: float) -> Setup:
    return replace(setup, heldout_scale=scale)


def heldout_prompt(setup: Setup, tokens: int) -> Setup:
    return replace(setup, heldout_prompt=tokens)
