"""Runs packages that train with GRPO, each in an environment of its own, under the check: one line of a table each."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

from lab.releases.checked import SCRIPTS, checked_script, run_apart
from lab.tables import markdown, read_csv
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml, write_jsonl
from rlvr_debug.replay.finding import DEVIATES, FAILED, NOT_SEEN
from rlvr_debug.venvs import build_over

CSV = ROOT / "benchmarks" / "packages.csv"
PACKAGES = ROOT / "lab" / "releases" / "packages.yaml"
TRAINERS = ROOT / "lab" / "releases" / "trainers.yaml"
_VERSIONS = "from importlib.metadata import version; print(version('trl'), version('transformers'))"


@dataclass(frozen=True)
class Package:
    """A release and one way to train with it.

    base: the environment that it is installed over. pins: what is installed there, without what it asks for. start: a
    script of ours with its arguments, or `-m MODULE ...`; {model}, {scripts} and {out} are folders. what: it trains
    with. means: by segment that deviates, what that is: `algorithm`, `defect` or `setting`, and in words which.
    """

    package: str
    version: str
    base: str
    pins: tuple[str, ...]
    start: str
    what: str
    means: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.package} {self.version}, {self.what}"


@dataclass(frozen=True)
class Said:
    """What the check says of a package. on: TRL and transformers; says: the answer's first sentences, or why not run;
    means: of each deviating segment; unseen: segments; run: the day."""

    package: str
    version: str
    what: str
    on: str
    says: str
    deviates: str
    means: str
    agree: int
    unseen: str
    run: str = ""

    def of(self, package: Package) -> bool:
        return self.name == package.name

    @property
    def name(self) -> str:
        return f"{self.package} {self.version}, {self.what}"


def packages() -> list[Package]:
    return [Package(**{**each, "pins": (*each["pins"],)}) for each in read_yaml(PACKAGES)]


def checked_package(package: Package) -> Said:
    """Return what the check says of a package, or why it could not be run."""
    head = (package.package, package.version, package.what)
    today = date.today().isoformat()
    try:
        on, answer = _ran(package)
    except InputError as error:
        return Said(*head, "", f"not run: {error}", "", "", 0, "", today)
    status = {each["segment"]: each["status"] for each in answer["segments"]}
    off = [name for name, said in status.items() if said in (DEVIATES, FAILED)]
    return Said(
        *head,
        on,
        answer["answer"].partition(" First in ")[0],
        ", ".join(off),
        "; ".join(dict.fromkeys(package.means.get(name, "unknown") for name in off)),
        sum(said == "agrees" for said in status.values()),
        ", ".join(name for name, said in status.items() if said == NOT_SEEN),
        today,
    )


def _ran(package: Package) -> tuple[str, Mapping[str, Any]]:
    python = build_over(package.base, f"{package.package}-{package.version}", package.pins)
    with tempfile.TemporaryDirectory() as scratch:
        places = {"model": ROOT / "models" / "tiny", "scripts": SCRIPTS, "out": scratch}
        for column in ("messages", "prompt"):
            write_jsonl(Path(scratch, column, "rows.jsonl"), _rows(column))
        start = [word.format(**places) for word in shlex.split(package.start)]
        answer = checked_script([str(python)], start, Path(scratch))
    done = run_apart([str(python), "-c", _VERSIONS], ROOT)
    on = dict(zip(("TRL", "transformers"), done.stdout.split(), strict=False))
    return ", ".join(f"{name} {version}" for name, version in on.items()), answer


def _rows(column: str) -> Iterator[dict[str, Any]]:
    """Return sums for a command line that reads such a column."""
    for a, b in product(range(8), repeat=2):
        system, user = {"content": "Add."}, {"content": f"{a} plus {b}?"}
        asked = [{"role": "system", **system}, {"role": "user", **user}]
        yield {column: asked, "answer": str(a + b)}


def unexpected(found: Iterable[Said]) -> list[str]:
    """Return a line for each package whose deviating segments are not those that packages.yaml explains."""
    wanted = {each.name: ", ".join(each.means) for each in packages()}
    return [
        f"{said.name}: {said.says}; expected {wanted[said.name] or 'nothing'} to deviate"
        for said in found
        if said.name in wanted
        and (said.says.startswith("not run") or said.deviates != wanted[said.name])
    ]


def in_order(found: Iterable[Said]) -> list[Said]:
    found = list(found)
    return [said for package in packages() for said in found if said.of(package)]


def read_said(file: Path = CSV) -> list[Said]:
    return read_csv(file, Said)


def packages_text(found: Iterable[Said] | None = None) -> str:
    """Return the table of packages by what the check says, and what that is."""
    kinds: dict[str, list[str]] = {}
    for said in read_said() if found is None else found:
        kind = ", ".join(dict.fromkeys(each.partition(":")[0] for each in said.means.split("; ")))
        kind = "not run" if said.says.startswith("not run") else kind or "agrees"
        place = f": {said.deviates}" if said.deviates else ""
        place += f"; not seen: {said.unseen.count(',') + 1}" if said.unseen else ""
        kinds.setdefault(kind, []).append(f"{said.package} {said.version} ({said.what}{place})")
    rows = ((kind, ", ".join(names)) for kind, names in sorted(kinds.items()))
    return markdown("what | packages, and segments", rows)


def trainers_text() -> str:
    """Return the table of what one types for a trainer, how many segments of its steps were seen, and when that was run."""
    ran = {said.name: said for said in read_said()}
    rows = []
    for row in read_yaml(TRAINERS):
        seen, run = row.get("seen"), row.get("run")
        if "ran" in row:
            said = ran[row["ran"]]
            count, unseen = (
                len(each.split(", ")) if each else 0 for each in (said.deviates, said.unseen)
            )
            seen, run = f"{said.agree + count} of {said.agree + count + unseen}", said.run
        rows.append((row["trainer"], row["how"], seen, str(run)))
    return markdown("trainer | after `rlvr-debug check` | segments seen | last run here", rows)
