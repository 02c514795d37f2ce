"""Two git revisions of a study: what differs, and both their training curves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import pandas as pd

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import parse_table, read_text
from rlvr_debug.processes import git
from rlvr_debug.report.charts import revisions_chart, write_svg
from rlvr_debug.study.params import parse_params
from rlvr_debug.verdicts.rule import in_words

WORKING_TREE = "working tree"
# of results, each with what its keys are
_PARTS = {"verdicts": "hypothesis", "metrics": "metric", "params": "key", "runs": "arm"}
T = TypeVar("T")
_LARGEST = 3  # changes of arms' gains that the end of a run tells


@dataclass(frozen=True)
class Results:
    """What git tracks of a study at a revision: a phrase by hypothesis, its first word, and values by key such as `a.b.c`."""

    name: str
    place: str
    statuses: Mapping[str, str]
    verdicts: Mapping[str, Any]
    metrics: Mapping[str, Any]
    params: Mapping[str, Any]
    curves: pd.DataFrame

    @property
    def runs(self) -> dict[str, int]:
        """By arm, how many there are: looks may choose others on another processor."""
        counts = self.curves.groupby("arm")["seed"].nunique()
        return {str(arm): int(count) for arm, count in counts.items()}


def read_results(
    revision: str | None, root: Path = ROOT, overlaid: bool = False, place: str = "results"
) -> Results:
    """Read the results of a git revision, or of the working tree, in the study's folder `root`; only study.json has all of an overlay's parameters."""
    if revision is not None:
        commit = ("--verify", "--end-of-options", f"{revision}^{{commit}}")
        _of_git(f"revision '{revision}'", "rev-parse", *commit, folder=root)

    def read(path: str, parse: Callable[[str, str], T]) -> T:
        if revision is None:
            place, text = path, read_text(root / path, "results of a study", path)
        else:
            place = f"{revision}:{path}"
            text = _of_git(place, "show", f"{revision}:./{path}", folder=root)
        try:
            return parse(text, place)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{place}: expected results of a study, found: {error!r}") from None

    def whole(text: str, _: str) -> dict[str, Any]:
        return dict(_flat(json.loads(text)["params"]))

    columns = ["arm", "seed", "step", "reward"]
    verdicts = read(f"{place}/tables/verdicts.csv", _verdicts)
    return Results(
        revision or WORKING_TREE,
        place,
        {slug: status for slug, (status, _) in verdicts.items()},
        {slug: phrase for slug, (_, phrase) in verdicts.items()},
        read(f"{place}/metrics.json", lambda text, _: dict(_flat(json.loads(text)))),
        read(f"{place}/study.json", whole)
        if overlaid
        else read("params.yaml", lambda text, at: dict(_flat(parse_params(text, at)))),
        read(f"{place}/tables/curves.csv", lambda text, _: parse_table(text)[columns]),
    )


def _of_git(place: str, *arguments: str, folder: Path) -> str:
    """In words of this comparison, not of git."""
    try:
        return git(*arguments, folder=folder)
    except InputError:
        raise InputError(f"{place}: not found in git, expected results of a study") from None


def _verdicts(text: str, _: str) -> dict[str, tuple[str, str]]:
    """Return by hypothesis its status, and a phrase that has it."""
    columns = ["hypothesis", "status", "confidence", "effect", "ci_low", "ci_high"]
    rows = parse_table(text)[columns].to_dict("records")
    return {row["hypothesis"]: (row["status"], _phrase(row)) for row in rows}


def _phrase(row: Mapping[Any, Any]) -> str:
    """Such as `validated (high): +0.26 [+0.16, +0.36]`."""
    confidence = f" ({row['confidence']})" if isinstance(row["confidence"], str) else ""
    if pd.isna(row["effect"]):
        return f"{in_words(row['status'])}{confidence}"
    effect, low, high = (f"{row[key]:+.3f}" for key in ("effect", "ci_low", "ci_high"))
    return f"{in_words(row['status'])}{confidence}: {effect} [{low}, {high}]"


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Values by key, `a.b.c`; an empty mapping is a value."""
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _flat(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


@dataclass(frozen=True)
class Comparison:
    """By part and key that differs, the value of each revision that has it; chart: None where nothing differs."""

    old: str
    new: str
    parts: Mapping[str, Mapping[str, Mapping[str, Any]]]
    chart: Path | None

    @property
    def text(self) -> str:
        """Markdown; one line if nothing differs."""
        if self.chart is None:
            return f"{self.old} and {self.new} have the same verdicts, metrics, params and curves."
        return "\n\n".join(f"## {part}\n\n{self._section(part)}" for part in self.parts)

    def _section(self, part: str) -> str:
        if not self.parts[part]:
            return f"The same in {self.old} and {self.new}."
        header = [_PARTS[part], self.old, self.new, "change"]
        rows = [
            [key, _shown(values, "old"), _shown(values, "new"), _change(values)]
            for key, values in self.parts[part].items()
        ]
        # a bar would end the cell
        lines = [[cell.replace("|", "\\|") for cell in line] for line in (header, *rows)]
        lines.insert(1, ["---"] * len(header))
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def to_json(self) -> dict[str, Any]:
        """By part and key, what each revision has; nothing where it has no such key."""
        chart = str(self.chart) if self.chart else None
        return {"old": self.old, "new": self.new, **self.parts, "chart": chart}


def _shown(values: Mapping[str, Any], which: str) -> str:
    """A dash where that revision has no such key."""
    value = values.get(which, "-")
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _moved(values: Mapping[str, Any]) -> float | None:
    """Return the difference of two numbers; None for anything else."""
    if len(values) == 2 and all(type(value) in (int, float) for value in values.values()):
        return float(values["new"] - values["old"])
    return None


def _change(values: Mapping[str, Any]) -> str:
    moved = _moved(values)
    return "" if moved is None else f"{moved:+.6g}"


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    both = {"old": old, "new": new}
    changed = (
        key for key in {*old, *new} if key not in old or key not in new or old[key] != new[key]
    )
    return {
        key: {name: values[key] for name, values in both.items() if key in values}
        for key in sorted(changed)
    }


def _parts(old: Results, new: Results) -> dict[str, dict[str, dict[str, Any]]]:
    parts = {part: _differences(getattr(old, part), getattr(new, part)) for part in _PARTS}
    # where these are the same, nobody asks
    return {part: values for part, values in parts.items() if values or part != "runs"}


def beside_committed(root: Path = ROOT, overlaid: bool = False) -> list[str]:
    """Say which figures in the working tree differ from the committed ones, and by how much; nothing where parameters differ, or nothing is committed."""
    kept = [f"results/{root.name}", f"results/releases/{root.name}"] if overlaid else []
    new = _found(None, root, overlaid)
    places = [(root, "results"), *((ROOT, place) for place in kept)]
    committed = (_found("HEAD", folder, overlaid, place) for folder, place in places)
    old = next(filter(None, committed), None)
    if new is None or old is None or (parts := _parts(old, new))["params"]:
        return []
    changed, others = parts["metrics"], _differences(old.statuses, new.statuses)
    if not (changed or others):
        return [f"All {len(new.metrics)} figures and all verdicts are the committed ones."]
    verdicts = f"{len(others)} of {len(new.statuses)} verdicts are" if others else "no verdict is"
    said = f"{len(changed)} of {len(new.metrics)} figures differ from the committed ones, and {verdicts} another"
    shown = (
        "make compare REV=HEAD shows all" if old.place == "results" else f"those are in {old.place}"
    )
    lines = [f"{said}, as it may be on another processor ({shown}):"]
    numbers = {key: moved for key in changed if (moved := _moved(changed[key])) is not None}
    gains = {key: moved for key, moved in numbers.items() if key.endswith(".gain")}
    largest = sorted(gains or numbers, key=lambda key: -abs(numbers[key]))[:_LARGEST]
    lines += [f"  {key}: {_both(changed[key])} ({_change(changed[key])})" for key in largest]
    lines += [f"  {cause}: {_both(parts['verdicts'][cause])}" for cause in others]
    lines += [f"  runs of {arm}: {_both(values)}" for arm, values in parts.get("runs", {}).items()]
    return lines


def _both(values: Mapping[str, Any]) -> str:
    return " to ".join(_shown(values, which) for which in ("old", "new"))


def _found(*place: Any) -> Results | None:
    """Return what read_results does, None where there are none."""
    with suppress(InputError):
        return read_results(*place)
    return None


def compare(
    revision: str, other: str | None, out: Path, root: Path = ROOT, overlaid: bool = False
) -> Comparison:
    """Return what differs between `revision` and `other`, None for the working tree, and draw both revisions' curves to `out`."""
    old, new = (read_results(each, root, overlaid) for each in (revision, other))
    parts = _parts(old, new)
    if not any(parts.values()) and old.curves.equals(new.curves):
        return Comparison(old.name, new.name, parts, None)
    write_svg(revisions_chart({each.name: each.curves for each in (old, new)}), out)
    return Comparison(old.name, new.name, parts, out)


# --- the experiments log


_METRICS = "metrics.json"
_TAB = "%x09"


@dataclass(frozen=True)
class Entry:
    """One study's results as of a commit; experiment: DVC's name; case, control: gains in held-out reward."""

    date: str
    commit: str
    experiment: str
    study: str
    case: float | None
    control: float | None
    verdicts: Mapping[str, str]
    subject: str


def history(root: Path) -> list[Entry]:
    """Return what each commit of this branch, and each of DVC's experiments, changed of any study's metrics.json."""
    form = f"--format={_TAB}%h{_TAB}%cI{_TAB}%s"
    # AM: added or changed; a merge shows what neither side has
    words = ("--diff-filter=AM", "--name-only", form, "--", f":(glob)**/{_METRICS}")
    entries = [*_entries("", git("log", *words, folder=root), root)]
    names = git("for-each-ref", "--format=%(refname)", "refs/exps", folder=root).splitlines()
    for name in names:
        # where DVC keeps what is under way
        if "/exec/" in name or name == "refs/exps/stash":
            continue
        shown = git("log", "-1", *words[:-2], name, *words[-2:], folder=root)
        entries += _entries(name.rpartition("/")[2], shown, root)
    return sorted(entries, key=lambda entry: entry.date, reverse=True)


def _entries(experiment: str, log: str, root: Path) -> Iterator[Entry]:
    """Of what `git log` says: a line with three tabs for each commit, and the paths that it changed."""
    commit = date = subject = ""
    for line in log.splitlines():
        if line.startswith("\t"):
            _, commit, date, subject = line.split("\t", 3)
        elif line and (metrics := _metrics(git("show", f"{commit}:{line}", folder=root))):
            statuses = {slug: each["status"] for slug, each in sorted(metrics["verdicts"].items())}
            yield Entry(
                date=date,
                commit=commit,
                experiment=experiment,
                study=_study(PurePosixPath(line)),
                case=_gain(metrics, "case"),
                control=_gain(metrics, "control"),
                verdicts=statuses,
                subject=subject,
            )


def _metrics(text: str) -> dict[str, Any] | None:
    """Of a study's metrics.json, as any of our versions wrote it; None for another file of that name."""
    try:
        metrics = json.loads(text)
        statuses = [each["status"] for each in metrics["verdicts"].values()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return metrics if all(isinstance(status, str) for status in statuses) else None


def _gain(metrics: Mapping[str, Any], arm: str) -> float | None:
    gain = metrics.get("arms", {}).get(arm, {}).get("gain")
    return gain if isinstance(gain, float | int) else None


def _study(file: PurePosixPath) -> str:
    """`default`, or the last folder's name that is not `results`."""
    names = [name for name in file.parent.parts if name not in ("results", "studies", "releases")]
    return "/".join(names) or "default"
