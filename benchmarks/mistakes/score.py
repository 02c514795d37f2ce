"""How often `diagnose` names the cause of logs.jsonl.gz and others.jsonl.gz, by kinds that no bound was set on.

    python -m benchmarks.mistakes.score [--fit] [--fold N ...] [--write]

A kind counts once: its runs' mean. An interval is of the kinds, by a bootstrap over them. --fold: what is said of each log
of these folds, so that checks can be mended on them and the others stay unseen. --fit: the model's weights
(diagnosis/checks.py), in which the held-out fold, second runs of known kinds and others' logs have no part.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression

from benchmarks.mistakes.kinds import AGAIN, HELD_OUT, HERE, OTHERS, Kind, load_kinds
from lab.tables import markdown
from rlvr_debug.diagnosis.checks import STANDS_OUT, WEIGHTS, features, run_checks
from rlvr_debug.diagnosis.rank import diagnose_log, reward_rises
from rlvr_debug.files import write_json, write_text
from rlvr_debug.logs.log import Log, make_log
from rlvr_debug.logs.structured import Rows

# ours, and those of authors who knew the names of causes alone
LOGS = (HERE / "logs.jsonl.gz", HERE / "others.jsonl.gz")
RESULTS = HERE / "results.md"
RELIABILITY = HERE / "reliability.md"
_EDGES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 1.01)

# what TRL logs with a vLLM sampler alone
_SAMPLER = "sampling/"
_DRAWS = 2000


@dataclass(frozen=True)
class Answer:
    """What was said of one log.

    said: causes that its evidence speaks for, most likely first, with their probability. learns: whether its reward rises.
    """

    kind: Kind
    run: int
    said: tuple[tuple[str, float], ...]
    checks: tuple[str, ...] = ()
    learns: bool | None = None

    @property
    def named(self) -> str:
        """The first cause, "" where none stands out."""
        return self.said[0][0] if self.said and self.said[0][1] >= STANDS_OUT else ""

    @property
    def first(self) -> bool:
        return self.named in self.kind.causes


@dataclass(frozen=True)
class Score:
    """Shares over kinds, with their 95 % intervals.

    other: another cause stands out. healthy, blamed: runs. failing: kinds, and how often their cause is first, by runs
    whose reward does not rise.
    """

    kinds: int
    first: tuple[float, float, float]
    other: float
    healthy: int
    blamed: int
    failing: tuple[int, tuple[float, float, float]]


def read_lines() -> list[dict[str, Any]]:
    found = []
    for path in LOGS:
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            found += [json.loads(line) for line in stream]
    return found


def kind_of(line: Mapping[str, Any]) -> Kind:
    """Return the kind of a line; one of others says itself what is right."""
    if "causes" in line:
        return Kind(line["kind"], tuple(line["causes"]), OTHERS, (line["settings"],))
    return load_kinds()[line["kind"]]


@dataclass(frozen=True)
class Has:
    """What lies in a log. sampler: its log-probabilities, which TRL logs with vLLM alone; settings: the run's, beside the log."""

    sampler: bool = True
    settings: bool = False

    def __str__(self) -> str:
        return " and ".join(["sampler"] * self.sampler + ["settings"] * self.settings) or "neither"


HAVE = tuple(Has(sampler, settings) for sampler in (True, False) for settings in (True, False))


def log_of(line: Mapping[str, Any], has: Has = HAVE[1]) -> Log:
    """Return the log of a line."""
    rows = [
        {k: v for k, v in row.items() if has.sampler or not k.startswith(_SAMPLER)}
        for row in line["log_history"]
    ]
    found = [Rows("trainer_state.json", rows)]
    if line["completions"]:
        found.append(Rows("JSONL", line["completions"]))
    log = make_log(f"{line['kind']}-{line['run']}", found)
    settings = kind_of(line).settings_of(line["run"])
    return replace(log, settings=settings) if has.settings else log


def answers(lines: Iterable[Mapping[str, Any]], has: Has = HAVE[1]) -> list[Answer]:
    found = []
    for line in lines:
        diagnosed = diagnose_log(log_of(line, has))
        said = tuple((each.slug, each.probability) for each in diagnosed.ranked)
        checks = tuple(",".join(each.checks) for each in diagnosed.ranked)
        found.append(Answer(kind_of(line), line["run"], said, checks, diagnosed.learns))
    return found


def score(found: Sequence[Answer]) -> Score:
    mistaken = [each for each in found if each.kind.causes]
    failing = [each for each in mistaken if each.learns is not True]
    healthy = [each for each in found if not each.kind.causes]
    return Score(
        len({each.kind.name for each in mistaken}),
        _share(mistaken, lambda a: a.first),
        _share(mistaken, lambda a: bool(a.named) and not a.first)[0],
        len(healthy),
        sum(bool(each.named) for each in healthy),
        (len({each.kind.name for each in failing}), _share(failing, lambda a: a.first)),
    )


def _share(found: Iterable[Answer], right: Callable[[Answer], bool]) -> tuple[float, float, float]:
    """Return the share that is right, of kinds whose runs count as one, with its interval by a bootstrap over them."""
    by_kind: dict[str, list[bool]] = {}
    for each in found:
        by_kind.setdefault(each.kind.name, []).append(right(each))
    values = [float(np.mean(runs)) for runs in by_kind.values()]
    if not values:
        return 0.0, 0.0, 0.0
    drawn = np.random.default_rng(0).choice(np.array(values), (_DRAWS, len(values))).mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.mean(values)), float(low), float(high)


def row(what: str, answered: Sequence[Answer]) -> str:
    """Return a row of the table."""
    found = score(answered)
    kinds, of_failing = found.failing
    first, failing = (
        f"{mean:.0%} [{low:.0%}, {high:.0%}]" for mean, low, high in (found.first, of_failing)
    )
    rest = (f"{found.blamed} of {found.healthy}", f"{found.other:.0%}", f"{failing} of {kinds}")
    return f"| {' | '.join((what, str(found.kinds), first, *rest))} |"


def first_answers() -> dict[str, list[Answer]]:
    """Return by round what was said of others' logs, beside their settings, when they were new."""
    found: dict[str, list[Answer]] = {}
    for line in (each for each in read_lines() if "first" in each):
        answer = Answer(kind_of(line), 0, ((line["first"], 1.0),) if line["first"] else ())
        found.setdefault(f"by others, round {line['round']}, when new", []).append(answer)
    return found


def table(found: Mapping[Has, Sequence[Answer]]) -> str:
    """Return the page's table. found: by what the logs have, answers to all of them."""
    columns = "logs | kinds | cause first | healthy runs blamed | another cause first"
    rows = [markdown(f"{columns} | cause first where the reward does not rise", [])]
    rows += [row(said, answered) for said, answered in first_answers().items()]
    for said, (part, have) in _PARTS.items():
        for has in have:
            rows.append(row(f"{said}: {has}", [each for each in found[has] if part(each)]))
    return "\n".join(rows) + "\n"


# parts of the logs, and what they have
_PARTS: Mapping[str, tuple[Callable[[Answer], bool], Sequence[Has]]] = {
    "by others, now": (lambda each: each.kind.fold == OTHERS, HAVE[2:]),
    "held out": (lambda each: each.kind.fold == HELD_OUT, HAVE),
    "known kinds again": (lambda each: each.run >= AGAIN, (HAVE[0], HAVE[-1])),
}


def fitted_on(kind: Kind, run: int) -> bool:
    """Return whether bounds and weights were set on such a run."""
    return kind.fold < HELD_OUT and run < AGAIN


def reliability(found: Iterable[Answer]) -> str:
    """Return how often the first cause is right by the probability that is printed of it, over logs that nothing was fitted on."""
    unseen = [x for x in found if x.said and not fitted_on(x.kind, x.run)]
    rows = []
    for low, high in pairwise(_EDGES):
        these = [each for each in unseen if low <= each.said[0][1] < high]
        right = [each.said[0][0] in each.kind.causes for each in these]
        share, mean = np.mean(right or [False]), np.mean([each.said[0][1] for each in these] or [0])
        bounds, correct = f"{low:.0%} to {min(high, 1):.0%}", f"{sum(right)} ({share:.0%})"
        rows.append((bounds, str(len(these)), f"{mean:.0%}", correct))
    return markdown("probability | logs | mean | correct", rows) + "\n"


def said_of(found: Sequence[Answer]) -> list[str]:
    """Return a line for each log: + right, . silent, - wrong, and the first causes with their checks."""
    lines = []
    for each in found:
        right = each.first if each.kind.causes else not each.named
        mark = "+" if right else "-" if each.named else "."
        pairs = [f"{s} {p:.0%} ({c})" for (s, p), c in zip(each.said, each.checks, strict=True)]
        lines.append(f"{mark} {each.kind.name} {each.run}: {'; '.join(pairs[:3]) or 'nothing'}")
    return lines


def fitted(lines: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the weights by feature. Every log counts with and without what vLLM alone shows, and its settings.

    A kind counts once, however many runs it has.
    """
    told, right, names = [], [], []
    for line in lines:
        for has in HAVE:
            log = log_of(line, has)
            for slug, found in features(run_checks(log), reward_rises(log)).items():
                told.append(found)
                right.append(slug in kind_of(line).causes)
                names.append(line["kind"])
    counts = {name: names.count(name) for name in names}
    weight = np.array([1 / counts[name] for name in names])
    columns = DictVectorizer(sparse=False)
    model = LogisticRegression(C=1.0, max_iter=5000)
    model.fit(columns.fit_transform(told), right, weight * len(weight) / weight.sum())
    named = zip(columns.get_feature_names_out(), model.coef_[0], strict=True)
    weights = {"intercept": model.intercept_[0], **dict(named)}
    return {name: round(float(value), 3) for name, value in weights.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fold", type=int, nargs="+", help="what is said of each log of these")
    parser.add_argument("--has", choices=[*map(str, HAVE)], default=str(HAVE[1]), help="there")
    parser.add_argument("--fit", action="store_true", help="before, the model that ranks causes")
    parser.add_argument("--write", action="store_true", help="the tables beside this file")
    args = parser.parse_args()
    lines = read_lines()
    if args.fit:
        known = [line for line in lines if fitted_on(kind_of(line), line["run"])]
        write_json(WEIGHTS, fitted(known))
        print(f"{WEIGHTS}: fitted on {len(known)} logs of {len({x['kind'] for x in known})} kinds")
    if args.fold:
        asked = [line for line in lines if kind_of(line).fold in args.fold]
        print(*said_of(answers(asked, next(has for has in HAVE if str(has) == args.has))), sep="\n")
        return
    found = {has: answers(lines, has) for has in HAVE}
    written = {RESULTS: table(found), RELIABILITY: reliability(chain(*found.values()))}
    print(*written.values(), sep="\n", end="")
    for path, text in written.items() if args.write else ():
        write_text(path, text)


if __name__ == "__main__":
    main()
