"""What the probes found of a release: its version, whose code ran, and the measurements."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from rlvr_debug.errors import InputError
from rlvr_debug.files import write_json
from rlvr_debug.probes.base import Measurement

__all__ = ["ReleaseReport", "files_of", "installed"]


def installed(package: str, expected: str) -> str:
    """Its version. Raises InputError where that is another one."""
    found = version(package)
    if found != expected:
        raise InputError(f"{package}: found {found}, expected {expected}")
    return found


def files_of(package: str, modules: Iterable[str]) -> tuple[str, ...]:
    """Where these modules were imported from, those that were, from the folder that the package is in."""
    [folder] = sys.modules[package].__path__
    ran = (sys.modules[name].__file__ for name in modules if name in sys.modules)
    return tuple(str(Path(file).relative_to(Path(folder).parent)) for file in ran if file)


@dataclass(frozen=True)
class ReleaseReport:
    """files: of the release that ran. not_run: probe -> why none of the release's code would run in it."""

    package: str
    version: str
    files: tuple[str, ...]
    measurements: list[Measurement]
    not_run: Mapping[str, str]

    def write(self, out: Path) -> None:
        write_json(
            out,
            {
                "release": f"{self.package} {self.version}",
                "files": list(self.files),
                "measurements": {m.probe: asdict(m) for m in self.measurements},
                "not_run": dict(self.not_run),
            },
        )
