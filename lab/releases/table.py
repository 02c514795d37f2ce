"""Lists the releases that are probed and the bugs that are known of them, and writes both as tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import write_text

__all__ = [
    "BUGS",
    "CSV",
    "RELEASES",
    "Bug",
    "ProbeResult",
    "Release",
    "missing",
    "read_results",
    "releases_text",
    "results_of",
    "write_results",
]

CSV = ROOT / "benchmarks" / "releases.csv"


@dataclass(frozen=True)
class Release:
    """A release of a package, probed on rollouts that were sampled at `temperature`."""

    package: str
    version: str
    temperature: float = 1.0

    @property
    def environment(self) -> str:
        """Return the name of its own environment: envs/<name>.txt."""
        return f"{self.package}-{self.version}"

    @property
    def column(self) -> str:
        return self.version if self.temperature == 1 else f"{self.version} at {self.temperature}"


_TRL = ("0.14.0", "0.15.2", "0.16.1", "0.22.2")
_COOL = 0.9  # the default of TRL's first releases
RELEASES = (
    *(Release("verifiers", version) for version in ("0.1.3", "0.1.5.post0", "0.1.6.post0")),
    *(Release("trl", version, t) for version in _TRL for t in (1.0, _COOL)),
)


@dataclass(frozen=True)
class Bug:
    """A bug that was reported in `source`: `probe` is to fail in `broken` and to pass in `mended`."""

    source: str
    what: str
    probe: str
    broken: Release
    mended: Release


BUGS = (
    Bug(
        "TRL, PR 2708",
        "the model reads the padding: log-probabilities without an attention mask",
        "trained-ratio",
        Release("trl", "0.14.0"),
        Release("trl", "0.15.2"),
    ),
    Bug(
        "TRL, PR 3029",
        "log-probabilities ignore the sampling temperature",
        "sampler-ratio",
        Release("trl", "0.15.2", _COOL),
        Release("trl", "0.16.1", _COOL),
    ),
    Bug(
        "TRL, issue 3021",
        "a denominator of each micro-batch",
        "micro-batch-invariance",
        Release("trl", "0.16.1"),
        Release("trl", "0.22.2"),
    ),
    Bug(
        "verifiers",
        "a batch that is used again is held against the policy itself",
        "second-iteration",
        Release("verifiers", "0.1.3"),
        Release("verifiers", "0.1.5.post0"),
    ),
)

# by probe: the figure that stands for it, and which of those that begin like this: the largest or the least
_FIGURES: Mapping[str, tuple[str, str]] = {
    "limits": ("share_of_replies_cut", "largest"),
    "sequence-diff": ("tokens_missing", "largest"),
    "token-roles": ("sampled_and_not_trained", "largest"),
    "context-sensitivity": ("mean_change", "least"),
    "reward-audit": ("std_within_groups", "largest"),
    "group-integrity": ("share_with_the_advantage_of_another", "largest"),
    "advantage-scale": ("largest_advantage", "largest"),
    "sampler-ratio": ("kl_k3", "largest"),
    "trained-ratio": ("kl_k3", "largest"),
    "kl-estimator": ("max_error", "largest"),
    "kl-gradient": ("relative_error_near", "largest"),
    "micro-batch-invariance": ("relative_error", "largest"),
    "loss-gradient": ("error", "largest"),
    "second-iteration": ("relative_error", "largest"),
    "gradient-size": ("sum_of_logprob_gradients", "largest"),
    "weights-move": ("relative_error", "largest"),
    "weight-sync": ("gap_to_new_weights", "largest"),
    "train-eval-equality": ("largest_weight_difference", "largest"),
}


@dataclass(frozen=True)
class ProbeResult:
    """What a probe says of a release.

    result: one of `passes`, `fails`, `not run`; value: of `figure`, in three digits; why: the reason where
    it was not run, and figure and value are "".
    """

    package: str
    version: str
    temperature: str
    transformers: str
    probe: str
    result: str
    figure: str
    value: str
    why: str

    def of(self, release: Release) -> bool:
        where = (self.package, self.version, self.temperature)
        return where == (release.package, release.version, f"{release.temperature:g}")


def results_of(release: Release, report: Mapping[str, Any] | str) -> list[ProbeResult]:
    """Return a line for each probe. report: what lab.releases.probe writes, or why it could not be run."""
    head = (
        release.package,
        release.version,
        f"{release.temperature:g}",
        _pinned(release, "transformers"),
    )
    if isinstance(report, str):
        return [ProbeResult(*head, probe, "not run", "", "", report) for probe in _FIGURES]
    found = []
    for probe, (figure, which) in _FIGURES.items():
        if measured := report["measurements"].get(probe):
            values = [v for name, v in measured["measured"].items() if name.startswith(figure)]
            value = max(values) if which == "largest" else min(values)
            result = "passes" if measured["passed"] else "fails"
            found.append(ProbeResult(*head, probe, result, figure, f"{value:.3g}", ""))
        else:
            why = report["not_run"][probe]
            found.append(ProbeResult(*head, probe, "not run", "", "", why))
    return found


def _pinned(release: Release, package: str) -> str:
    lines = (ROOT / "envs" / f"{release.environment}.txt").read_text(encoding="utf-8").splitlines()
    [version] = [
        line.removeprefix(f"{package}==") for line in lines if line.startswith(f"{package}==")
    ]
    return version


def write_results(found: Iterable[ProbeResult], file: Path) -> None:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(field.name for field in fields(ProbeResult))
    rows.writerows(map(astuple, found))
    write_text(file, text.getvalue())


def read_results(file: Path = CSV) -> list[ProbeResult]:
    with file.open(encoding="utf-8", newline="") as handle:
        return [ProbeResult(**row) for row in csv.DictReader(handle)]


def missing(found: Iterable[ProbeResult]) -> list[str]:
    """Return a line for each bug that is not found in its broken release and clear in the mended one."""
    found = list(found)
    return [
        f"{bug.source}: {bug.probe} {_of(found, release, bug.probe).result} in {release.package} "
        f"{release.column}, expected that it {expected}"
        for bug in BUGS
        for release, expected in ((bug.broken, "fails"), (bug.mended, "passes"))
        if _of(found, release, bug.probe).result != expected
    ]


def _of(found: Iterable[ProbeResult], release: Release, probe: str) -> ProbeResult:
    matching = [each for each in found if each.of(release) and each.probe == probe]
    if len(matching) != 1:
        raise InputError(
            f"{probe} of {release.package} {release.column}: found {len(matching)} lines, expected one"
        )
    return matching[0]


def releases_text(found: Iterable[ProbeResult] | None = None) -> str:
    """Return the table of bugs, and a matrix of releases and probes for each package."""
    found = list(read_results() if found is None else found)
    packages = list(dict.fromkeys(release.package for release in RELEASES))
    return "\n\n".join([_pairs(found), *(_matrix(found, package) for package in packages)])


def _pairs(found: list[ProbeResult]) -> str:
    rows = ["| bug | what | probe | broken | mended |", "| --- | --- | --- | --- | --- |"]
    for bug in BUGS:
        sides = (
            f"{release.column}: {each.result}, {_cell(each)}"
            for release in (bug.broken, bug.mended)
            for each in [_of(found, release, bug.probe)]
        )
        rows.append(f"| {bug.source} | {bug.what} | `{bug.probe}` | {' | '.join(sides)} |")
    return "\n".join(rows)


def _matrix(found: list[ProbeResult], package: str) -> str:
    """Return a column for each release, and below it why a probe was not run."""
    releases = [release for release in RELEASES if release.package == package]
    by_probe = {probe: [_of(found, release, probe) for release in releases] for probe in _FIGURES}
    pins = [line.transformers for line in next(iter(by_probe.values()))]
    rows = [
        f"| {package} | figure | {' | '.join(release.column for release in releases)} |",
        f"| --- | --- | {' | '.join('---' for _ in releases)} |",
        f"| transformers | | {' | '.join(pins)} |",
    ]
    # why -> the releases -> the probes
    reasons: dict[str, dict[str, list[str]]] = {}
    for probe, line in by_probe.items():
        if figures := {each.figure for each in line if each.figure}:
            rows.append(f"| `{probe}` | {figures.pop()} | {' | '.join(map(_cell, line))} |")
        for why in dict.fromkeys(each.why for each in line if each.why):
            columns = [r.column for r, each in zip(releases, line, strict=True) if each.why == why]
            where = "" if len(columns) == len(releases) else f" in {', '.join(columns)}"
            reasons.setdefault(why, {}).setdefault(where, []).append(f"`{probe}`")
    told = [
        f"- {', '.join(probes)}{where}: {why}"
        for why, places in reasons.items()
        for where, probes in places.items()
    ]
    return "\n".join([*rows, "", f"Not run in {package}:", "", *told])


def _cell(found: ProbeResult) -> str:
    if found.result == "not run":
        return "-"
    return f"**{found.value}**" if found.result == "fails" else found.value
