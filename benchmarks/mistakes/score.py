"""How often `diagnose` names the cause of logs.jsonl.gz, by kinds that no bound was set on.

    python -m benchmarks.mistakes.score [--fold N ...] [--write]

A kind counts once: its runs' mean. An interval is of the kinds, by a bootstrap over them. --fold: what is said of each log of these folds,
so that checks can be mended on them and the others stay unseen.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mistakes.kinds import AREAS, HELD_OUT, HERE, Kind, load_kinds
from benchmarks.mistakes.make import LOGS
from rlvr_debug.diagnosis.rank import reward_rises, suspects
from rlvr_debug.files import write_text
from rlvr_debug.logs.log import Log, make_log
from rlvr_debug.logs.readers import Rows

__all__ = ["RESULTS", "Answer", "Score", "answers", "log_of", "read_lines", "row", "score", "table"]

RESULTS = HERE / "results.md"

# what TRL logs with a vLLM sampler alone
_SAMPLER = "sampling/"
_DRAWS = 2000


@dataclass(frozen=True)
class Answer:
    """What was said of one log. said: suspects, most likely first; first, area: whether that is right.

    rises: whether the training reward does, as a diagnosis has it.
    """

    kind: Kind
    run: int
    said: tuple[str, ...]
    checks: tuple[str, ...]
    rises: bool | None = False

    @property
    def blamed(self) -> bool:
        """Whether a check found something worth an experiment: more than what no log shows."""
        return any(checks != "unseen" for checks in self.checks)

    @property
    def first(self) -> bool:
        return bool(self.said) and self.said[0] in self.kind.causes

    @property
    def area(self) -> bool:
        return bool(self.said) and AREAS.get(self.said[0]) in {AREAS[c] for c in self.kind.causes}


@dataclass(frozen=True)
class Score:
    """Shares over kinds, each with its 95 % interval. blamed: healthy kinds of which a check says something.

    flat: other healthy kinds, whose reward does not rise, so that what no log shows is listed.
    """

    kinds: int
    first: tuple[float, float, float]
    area: tuple[float, float, float]
    healthy: int
    blamed: int
    flat: int


def read_lines(path: Path = LOGS) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def log_of(line: Mapping[str, Any], sampler: bool = True) -> Log:
    """Return the log of a line; without `sampler`, as TRL logs without vLLM."""
    rows = [
        {k: v for k, v in row.items() if sampler or not k.startswith(_SAMPLER)}
        for row in line["log_history"]
    ]
    found = [Rows("trainer_state.json", rows)]
    if line["completions"]:
        found.append(Rows("JSONL", line["completions"]))
    return make_log(f"{line['kind']}-{line['run']}", found)


def answers(lines: Iterable[Mapping[str, Any]], sampler: bool = True) -> list[Answer]:
    kinds = load_kinds()
    found = []
    for line in lines:
        log = log_of(line, sampler)
        ranked = suspects(log)
        said = tuple(each.slug for each in ranked)
        checks = tuple(",".join(each.checks) or "unseen" for each in ranked)
        found.append(Answer(kinds[line["kind"]], line["run"], said, checks, reward_rises(log)))
    return found


def score(found: Sequence[Answer]) -> Score:
    by_kind: dict[str, list[Answer]] = {}
    for each in found:
        by_kind.setdefault(each.kind.name, []).append(each)
    mistakes = [runs for runs in by_kind.values() if runs[0].kind.causes]
    healthy = [runs for runs in by_kind.values() if not runs[0].kind.causes]
    return Score(
        len(mistakes),
        _share([float(np.mean([a.first for a in runs])) for runs in mistakes]),
        _share([float(np.mean([a.area for a in runs])) for runs in mistakes]),
        len(healthy),
        sum(any(a.blamed for a in runs) for runs in healthy),
        sum(not any(a.blamed for a in runs) and any(a.said for a in runs) for runs in healthy),
    )


def _share(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean with its interval, by a bootstrap over kinds."""
    if not values:
        return 0.0, 0.0, 0.0
    drawn = np.random.default_rng(0).choice(np.array(values), (_DRAWS, len(values))).mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.mean(values)), float(low), float(high)


def row(what: str, answered: Sequence[Answer]) -> str:
    """Return a row of the table."""
    found = score(answered)
    first, area = (
        f"{mean:.0%} [{low:.0%}, {high:.0%}]" for mean, low, high in (found.first, found.area)
    )
    return f"| {what} | {found.kinds} | {first} | {area} | {found.blamed} of {found.healthy} | {found.flat} |"


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the page's table: kinds that bounds were set on, and those that were held out."""
    rows = [
        "| logs | kinds | cause first | its area | healthy kinds blamed | others whose reward is flat |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for sampler in (True, False):
        found = answers(lines, sampler)
        what = "with the sampler's log-probabilities" if sampler else "without them"
        held_out = [each for each in found if each.kind.fold == HELD_OUT]
        rows.append(row(f"held out, {what}", held_out))
        flat = [each for each in held_out if each.rises is False]
        rows.append(row(f"of these, runs whose reward does not rise, {what}", flat))
        seen = [each for each in found if each.kind.fold != HELD_OUT]
        rows.append(row(f"bounds were set on these, {what}", seen))
    return "\n".join(rows) + "\n"


def said_of(found: Sequence[Answer]) -> list[str]:
    """Return a line for each log: + right, ~ its area, - neither, and the first suspects with their checks."""
    lines = []
    for each in found:
        right = each.first if each.kind.causes else not each.blamed
        mark = "+" if right else "~" if each.area else "-"
        pairs = [f"{s} ({c})" for s, c in zip(each.said, each.checks, strict=True)]
        lines.append(f"{mark} {each.kind.name} {each.run}: {'; '.join(pairs[:3]) or 'nothing'}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--logs", type=Path, default=LOGS)
    parser.add_argument("--fold", type=int, nargs="+", help="what is said of each log of these")
    parser.add_argument("--write", action="store_true", help=f"the table to {RESULTS.name}")
    args = parser.parse_args()
    lines, kinds = read_lines(args.logs), load_kinds()
    found = table(lines)
    print(found, end="")
    asked = [line for line in lines if kinds[line["kind"]].fold in (args.fold or ())]
    for each in said_of(answers(asked)):
        print(each)
    if args.write:
        write_text(RESULTS, found)


if __name__ == "__main__":
    main()
