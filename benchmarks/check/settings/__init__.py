"""Healthy scripts: unusual settings of TRL's trainer, singly and in pairs. None of them may be flagged."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.check.case import Case
from benchmarks.check.settings import arguments, models, objects, tooling
from benchmarks.check.settings.pairs import PAIRS
from benchmarks.check.settings.setting import Setting

__all__ = ["HEALTHY", "SETTINGS", "apply_settings"]

SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for module in (arguments, models, objects, tooling)
    for setting in module.SETTINGS
}

# the scripts that the benchmark runs
HEALTHY = ("", *SETTINGS, *PAIRS)


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
