"""Probes a release, and reports its version, whose code ran, and what was measured."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from lab.probes import PROBES, Measurement, Subject
from lab.releases.loss_gradient import loss_gradient
from lab.releases.trained_ratio import trained_ratio
from rlvr_debug.errors import InputError
from rlvr_debug.files import write_json

__all__ = ["NAMED", "Probe", "ReleaseCase", "ReleaseReport", "probe_release"]

Probe = Callable[[Subject], Measurement]
# the probes of every release by name, in the order of a training step
NAMED: Mapping[str, Probe] = {
    probe.__name__.replace("_", "-"): probe for probe in (*PROBES, trained_ratio, loss_gradient)
}


@dataclass(frozen=True)
class ReleaseCase:
    """A release on the default study's rows and model, and what can be measured of it.

    not_run: probe -> why none of the release's code would run in it; modules: those whose functions the
    probes run, where the release has them.
    """

    subject: Subject
    probes: Mapping[str, Probe]
    not_run: Mapping[str, str]
    modules: Iterable[str]


@dataclass(frozen=True)
class ReleaseReport:
    """What was measured of a release. files: of the release that ran; not_run: as in ReleaseCase."""

    release: str
    files: tuple[str, ...]
    measurements: Mapping[str, Measurement]
    not_run: Mapping[str, str]


def probe_release(
    package: str, expected: str, case_of: Callable[[Path], ReleaseCase], out: Path
) -> ReleaseReport:
    """Probe the release that is installed, and write a JSON file. case_of: makes the case in a folder.

    Raise InputError where another version is installed than expected.
    """
    found = version(package)
    if found != expected:
        raise InputError(f"{package}: found {found}, expected {expected}")
    with tempfile.TemporaryDirectory() as scratch:
        case = case_of(Path(scratch))
        measurements = {
            name: probe(case.subject)
            for name, probe in case.probes.items()
            if name not in case.not_run
        }
    files = _files_of(package, case.modules)
    report = ReleaseReport(f"{package} {found}", files, measurements, case.not_run)
    write_json(out, asdict(report))
    return report


def _files_of(package: str, modules: Iterable[str]) -> tuple[str, ...]:
    """Return where these modules were imported from, from the folder that the package is in."""
    [folder] = sys.modules[package].__path__
    ran = (sys.modules[name].__file__ for name in modules if name in sys.modules)
    return tuple(str(Path(file).relative_to(Path(folder).parent)) for file in ran if file)
