"""What the folder of an environment says of itself to the rest of the library."""

import json
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rlvr_debug.data.rows import Row
from rlvr_debug.environments.base import Environment
from rlvr_debug.errors import InputError

# what a script says of a row in its turn (from 0)
Policy = Callable[[Any, int], str]


@dataclass(frozen=True)
class Lengths:
    """Tokens of one rollout: its prompt, each of its replies, how many replies, and what a tool returns after
    all but the last."""

    prompt: int
    reply: int
    turns: float
    tool: int

    def within(self, max_turns: int, max_new_tokens: int) -> "Lengths":
        reply, turns = min(self.reply, max_new_tokens), min(self.turns, max_turns)
        return replace(self, reply=reply, turns=turns)

    @property
    def sampled(self) -> float:
        return self.turns * self.reply

    @property
    def total(self) -> float:
        """Return the tokens of the trained sequence."""
        return self.prompt + self.sampled + (self.turns - 1) * self.tool


@dataclass(frozen=True)
class Task:
    """An environment: the `TASK` of its folder, whose name is the environment's.

    row: the data class of its rows. numbered: whether a row without an id gets `<name>-<its number>`.
    synthetic: makes rows up from the settings `data.<name>`.
    build: makes the environment of the settings `environments.<name>`.
    policies: what scripts say of a row, by name; `oracle` earns everything, and `spoiler` must lose.
    lengths: what the rollouts of a real model take, for a plan's costs.
    datasets, flags: for training by flags, the selection of the hub, and flags for the environment's own
    settings, as argparse has them; `dest` is the setting. flag_defaults: what other flags are here, where they are
    not given.
    """

    row: type[Row]
    synthetic: Callable[[Mapping[str, Any]], Iterable[Row]]
    build: Callable[..., Environment]
    policies: Mapping[str, Policy]
    lengths: Lengths
    numbered: bool = False
    datasets: str = ""
    flags: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    flag_defaults: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("oracle", "spoiler"):
            if name not in self.policies:
                raise InputError(
                    f"{self.row.__name__}: policies has no '{name}', it needs oracle and spoiler, "
                    f"found {', '.join(self.policies) or 'none'}"
                )


def shares(setting: Mapping[str, float]) -> dict[int, float]:
    """Return a setting such as `{"2": 0.7, "3": 0.3}`, read from JSON, with numbers for keys."""
    return {int(number): share for number, share in setting.items()}


def check_shares(name: str, shares: Mapping[int, float], most: int) -> None:
    """Raise InputError unless some of the numbers 1 to `most` have a share."""
    if not set(shares) <= set(range(1, most + 1)) or sum(shares.values()) <= 0:
        raise InputError(f"{name} is {dict(shares)}, expected shares for 1 to {most}, not all 0")


def draw(rng: random.Random, shares: Mapping[int, float]) -> int:
    numbers = sorted(shares)  # the same shares in another order are the same shares
    return rng.choices(numbers, weights=[shares[number] for number in numbers])[0]


def tool_call(name: str, **arguments: str) -> str:
    """Return a reply that calls a tool, as Hermes' models write it."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def number_policies(
    oracle: Policy, answer: Callable[[Any], str], said: Callable[[str], str]
) -> dict[str, Policy]:
    """Return policies for questions whose answer is a number.

    answer: the right answer of a row. said: an answer in the format that counts.
    """

    def guesser(row: Row, turn: int) -> str:
        """Say a number of the question."""
        return said(random.Random(f"guess {row.id} {turn}").choice(_numbers(row)))

    return {
        "oracle": oracle,
        "answer without retrieval": lambda row, turn: said(answer(row)),
        "random": guesser,
        "copy the question": lambda row, turn: said(row.question),
        "citation spammer": lambda row, turn: said(" ".join(_numbers(row))),
        "format only": lambda row, turn: said("0"),
        "spoiler": lambda row, turn: said(_numbers(row)[0]),
    }


def _numbers(row: Row) -> list[str]:
    """Return the numbers of the question, at least one."""
    return re.findall(r"\d+", row.question) or ["0"]
