"""The experiments log: every result that git or DVC kept of any study, the newest first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rlvr_debug.processes import git

_METRICS = "metrics.json"
_TAB = "%x09"


@dataclass(frozen=True)
class Entry:
    """One study's results as of a commit.

    study: by the folder of its results; experiment: DVC's name, empty for a commit of a branch. case, control: gains in
    held-out reward, None where there are none; verdicts: status by hypothesis.
    """

    date: str
    commit: str
    experiment: str
    study: str
    case: float | None
    control: float | None
    verdicts: Mapping[str, str]
    subject: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def history(root: Path) -> list[Entry]:
    """Return what each commit of this branch, and each of DVC's experiments, changed of any study's metrics.json.

    Raises InputError where `root` is no git repository.
    """
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
