"""Lists the releases that are checked segment by segment and the bugs that are known of them, and writes both as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.tables import markdown, read_csv
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml, write_csv
from rlvr_debug.replay.finding import AGREES, DEVIATES, NOT_SEEN
from rlvr_debug.replay.segments import SEGMENTS
from rlvr_debug.trainers.verifiers.fixes import fix_names

CSV = ROOT / "benchmarks" / "releases.csv"


@dataclass(frozen=True)
class Release:
    """A release of a package, which has an environment of its own."""

    package: str
    version: str

    @property
    def environment(self) -> str:
        """Return the environment's name: that of envs/<name>.txt."""
        return f"{self.package}-{self.version}"


@dataclass(frozen=True)
class Subject:
    """A release as it is checked.

    fixes: of fixes/<release>/, those that it has. settings: what it is told otherwise than the others, by name: fields
    of GRPOConfig with TRL, of our training with verifiers.
    """

    release: Release
    fixes: tuple[str, ...] = ()
    settings: tuple[tuple[str, float], ...] = ()

    @property
    def column(self) -> str:
        known = fix_names(self.release.environment) if self.fixes else []
        parts = (
            self.release.version,
            *(["all fixes"] if known and len(self.fixes) == len(known) else self.fixes),
            *(f"{name} {value:g}" for name, value in self.settings),
        )
        return ", ".join(parts)

    @property
    def name(self) -> str:
        return f"{self.release.package} {self.column}"


@dataclass(frozen=True)
class Pair:
    """A bug that was reported in `source`: `segment` is to deviate in `broken` and to agree in `mended`."""

    source: str
    what: str
    segment: str
    broken: Subject
    mended: Subject


def _subject(told: Mapping[str, Any]) -> Subject:
    release, fixes = Release(told["package"], told["version"]), told.get("fixes", ())
    known = fix_names(release.environment) if fixes == "all" else fixes
    return Subject(release, (*known,), (*told.get("settings", {}).items(),))


_READ = read_yaml(ROOT / "lab" / "releases" / "bugs.yaml")
PAIRS = tuple(
    Pair(**{**bug, "broken": _subject(bug["broken"]), "mended": _subject(bug["mended"])})
    for bug in _READ["bugs"]
)
_SIDES = (subject for pair in PAIRS for subject in (pair.broken, pair.mended))
SUBJECTS = tuple(dict.fromkeys([*_SIDES, *map(_subject, _READ["others"])]))


@dataclass(frozen=True)
class Checked:
    """What the check says of a segment of a subject.

    status: as in replay/finding.py, or `not run`; share: of the tolerance, in three digits, "" where there is none;
    names: what gives the recorded numbers, by semicolons; note: where and how much, or why not.
    """

    package: str
    subject: str
    segment: str
    status: str
    share: str
    names: str
    note: str

    def of(self, subject: Subject) -> bool:
        return (self.package, self.subject) == (subject.release.package, subject.column)


def checks_of(subject: Subject, answer: Mapping[str, Any] | str) -> list[Checked]:
    """Return a line for each segment. answer: of the check (replay/answer.py), or why it could not be run."""
    head = (subject.release.package, subject.column)
    if isinstance(answer, str):
        return [Checked(*head, each.name, "not run", "", "", answer) for each in SEGMENTS]
    return [
        Checked(
            *head,
            each["segment"],
            each["status"],
            f"{each['share']:.3g}" if each["share"] else "",
            "; ".join(name["name"] for name in each["names"]),
            each["note"],
        )
        for each in answer["segments"]
    ]


def write_checks(found: Iterable[Checked], file: Path) -> None:
    write_csv(file, Checked, found)


def in_order(found: Iterable[Checked]) -> list[Checked]:
    """Return the lines of the subjects that there are, in their order."""
    found = list(found)
    return [each for subject in SUBJECTS for each in found if each.of(subject)]


def read_checks(file: Path = CSV) -> list[Checked]:
    return read_csv(file, Checked)


def missing(found: Iterable[Checked]) -> list[str]:
    """Return a line for each bug that does not deviate in its broken release, and agree in the mended one."""
    found = list(found)
    return [
        f"{pair.source}: {pair.segment} {_of(found, subject, pair.segment).status} in {subject.name}, "
        f"expected that it {expected}"
        for pair in PAIRS
        for subject, expected in ((pair.broken, DEVIATES), (pair.mended, AGREES))
        if _of(found, subject, pair.segment).status != expected
    ]


def _of(found: Iterable[Checked], subject: Subject, segment: str) -> Checked:
    matching = [each for each in found if each.of(subject) and each.segment == segment]
    if len(matching) != 1:
        raise InputError(f"{segment} of {subject.name}: found {len(matching)} lines, expected one")
    return matching[0]


def checks_text(found: Iterable[Checked] | None = None) -> str:
    """Return the table of bugs, and what deviates in each subject."""
    found = list(read_checks() if found is None else found)
    return "\n\n".join([pairs_text(found), _subjects(found)])


def pairs_text(found: Iterable[Checked] | None = None) -> str:
    """Return the table of bugs: what the check says in the broken release, and in the mended one."""
    found = list(read_checks() if found is None else found)
    rows = []
    for pair in PAIRS:
        sides = (
            f"{subject.column}: {_said(_of(found, subject, pair.segment))}"
            for subject in (pair.broken, pair.mended)
        )
        rows.append((pair.source, pair.what, pair.segment, *sides))
    return markdown("bug | what | segment | broken | mended", rows)


def _said(each: Checked) -> str:
    if each.status == DEVIATES:
        return f"**deviates**: {each.names or 'no name'}"
    return f"{each.status}: {each.note}" if each.status == NOT_SEEN else each.status


def _subjects(found: list[Checked]) -> str:
    """Return a row for each subject: its first deviation, what may follow from it, and what was not seen."""
    rows = []
    for subject in SUBJECTS:
        own = [each for each in found if each.of(subject)]
        off = [each for each in own if each.status == DEVIATES]
        unseen = [each.segment for each in own if each.status in (NOT_SEEN, "not run")]
        first, names = (off[0].segment, off[0].names) if off else ("none", "")
        follow = ", ".join(each.segment for each in off[1:])
        rows.append((subject.name, first, names, follow, ", ".join(unseen)))
    return markdown("release | first deviation | named | what may follow | not seen", rows)
