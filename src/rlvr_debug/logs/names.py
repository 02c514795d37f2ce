"""What other trainers call the quantities that the checks read (names.yaml) and their settings (arguments.yaml)."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from rlvr_debug.files import read_yaml

# stands for a number that was printed with so few decimals that none of it is left
ROUNDED = "rounded to nothing"
_PREFIXES = ("train/", "global/")
# the mean and the standard deviation of one part of the reward, as TRL and its forks log them, and prime-rl of each agent
_PART = re.compile(r"(?:agg/all/[^/]+/)?rewards/(?P<part>.+?)(?:/(?P<what>mean|std))?")
_OF_A_PART = ("mean", "std", "min", "max", "p10", "p50", "p90")
_WORDS = re.compile(r"<[a-z]+>")
_HERE = Path(__file__)
# settings by TRL's names
ARGUMENTS: Mapping[str, Mapping[str, Any]] = read_yaml(_HERE.with_name("arguments.yaml"))
# frameworks, quantities, completions and what consoles print
KNOWN: Mapping[str, Mapping[str, Any]] = read_yaml(_HERE.with_name("names.yaml"))
# by quantity, its names by framework
NAMES: Mapping[str, Mapping[str, Sequence[str]]] = {
    quantity: each["names"] for quantity, each in KNOWN["quantities"].items()
}
_COLUMNS = (f"completions.{name}" for name in KNOWN["completions"])
# all that a check may need (Log.has)
READABLE = (
    *NAMES,
    "parts",
    "part_stds",
    "completions",
    *_COLUMNS,
    *(f"argument.{name}" for name in ARGUMENTS),
)


@functools.cache
def _by_name() -> Mapping[str, tuple[str, int]]:
    """Lower-case name -> quantity, and its place in the table: the least one counts."""
    found: dict[str, tuple[str, int]] = {}
    for quantity, names in NAMES.items():
        for place, name in enumerate(chain(*names.values())):
            found.setdefault(name.lower(), (quantity, place))
    return found


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    """Return a name as a pattern, in which <x> stands for any words."""
    return re.compile(".+".join(map(re.escape, _WORDS.split(name.lower()))))


def _plain(name: str) -> list[str]:
    """The name as the table may have it: as it is, or without a prefix that says nothing."""
    low = name.strip().lower().replace(" / ", "/")
    return [low, *(low[len(prefix) :] for prefix in _PREFIXES if low.startswith(prefix))]


@functools.lru_cache(maxsize=4096)
def resolve(name: str) -> tuple[str, int] | None:
    """The quantity that a column holds, and its rank among columns of the same quantity."""
    for candidate in _plain(name):
        for known, found in _by_name().items():
            if known == candidate or ("<" in known and _pattern(known).fullmatch(candidate)):
                return found
    return None


def framework_of(sources: Mapping[str, str]) -> str:
    """Return the framework that calls most of these quantities so, `trl` where none does. sources: column by quantity."""

    def count(framework: str) -> int:
        return sum(
            any(_pattern(name).fullmatch(each) for each in _plain(column))
            for quantity, column in sources.items()
            if quantity != "step"  # which loggers name
            for name in NAMES[quantity].get(framework, ())
        )

    return max(("trl", *KNOWN["frameworks"]), key=count)


@functools.lru_cache(maxsize=4096)
def part_of(name: str) -> tuple[str, str] | None:
    """(part, mean or std) where the column is of one part of the reward."""
    for candidate in _plain(name):
        match = _PART.fullmatch(candidate)
        if match and match["part"].rpartition("/")[2] not in _OF_A_PART:
            return match["part"], match["what"] or "mean"
    return None


def is_known(name: str) -> bool:
    """Return whether a column is of a quantity, or of a part of the reward."""
    return bool(resolve(name) or part_of(name))


def dotted(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield a tree's leaves under dotted names. A repeated YAML alias is visited once."""
    below, seen = [("", tree)], set()
    while below:
        prefix, tree = below.pop()
        if isinstance(tree, Mapping) and id(tree) not in seen:
            seen.add(id(tree))
            for key, value in tree.items():
                value = value["value"] if isinstance(value, Mapping) and "value" in value else value
                if isinstance(value, Mapping):
                    below.append((f"{prefix}{key}.", value))
                else:
                    yield f"{prefix}{key}", value


def argument_name(name: str, framework: str) -> str:
    """Return what a trainer calls the argument that TRL calls so; TRL's name where none is known."""
    return str(ARGUMENTS.get(name, {}).get("names", {}).get(framework, name))


def argument_value(settings: Mapping[str, Any], name: str, framework: str = "") -> Any:
    """Return the value of TRL's argument, by whatever name the settings have it; None where they do not, or it does nothing.

    framework: the log's, if names without dots are to be of no other one: `max_epochs` is many a program's.
    """
    known = ARGUMENTS.get(name, {})
    needed = known.get("only_with", {})
    others = known.get("names", {}).items()
    names = [name, *(n for of, n in others if "." in n or framework in ("", of))]
    return next(
        (
            settings[each]
            for each in names
            if each in settings and settings.get(needed.get(each), True) is not False
        ),
        None,
    )
