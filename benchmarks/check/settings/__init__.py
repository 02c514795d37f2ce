"""Healthy scripts: unusual settings of TRL's trainer, singly and in pairs. None of them may be flagged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.check.case import Case
from benchmarks.check.settings import models, objects, tooling
from benchmarks.check.settings.setting import Setting, told
from rlvr_debug.files import read_yaml

__all__ = ["HEALTHY", "SETTINGS", "apply_settings"]

_READ = read_yaml(Path(__file__).with_name("settings.yaml"))
_ARGUMENTS = (told(name, **given) for name, given in _READ["arguments"].items())
SETTINGS: dict[str, Setting] = {
    each.name: each
    for each in (*_ARGUMENTS, *models.SETTINGS, *objects.SETTINGS, *tooling.SETTINGS)
}

# the scripts that the benchmark runs
HEALTHY = ("", *SETTINGS, *_READ["pairs"])


def apply_settings(names: str, case: Case) -> Case:
    """Return the case with the settings of `names`, joined by `+`. Raises SystemExit for an unknown one."""
    for name in filter(None, names.split("+")):
        if name not in SETTINGS:
            raise SystemExit(
                f"--setting {name}: unknown, expected one of {', '.join(sorted(SETTINGS))}"
            )
        case = SETTINGS[name].apply(case)
        case = replace(case, settings=(*case.settings, name))
    return case
