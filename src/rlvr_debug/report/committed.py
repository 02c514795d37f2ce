"""What a study found beside the results that git has of it: the same figures, or which are others and by how much."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import parse_table, read_text
from rlvr_debug.processes import git

_LARGEST = 3  # changes of arms' gains that are told


def beside_committed(root: Path = ROOT, overlaid: bool = False) -> list[str]:
    """Say which figures of the study in this folder differ from the committed ones; nothing where parameters do, or nothing is committed.

    overlaid: the study is an overlay's, whose results may be kept below the checkout's.
    """
    kept = (f"results/{root.name}", f"results/releases/{root.name}") if overlaid else ()
    for folder, place in ((root, "results"), *((ROOT, name) for name in kept)):
        with suppress(InputError):
            old = [git("show", f"HEAD:./{name}", folder=folder) for name in _files(place, overlaid)]
            break
    else:
        return []
    new = [read_text(root / name, "results of a study") for name in _files("results", overlaid)]
    if _asked(old[2]) != _asked(new[2]):
        return []
    before, figures = _figures(old[0]), _figures(new[0])
    said, verdicts = _statuses(old[1]), _statuses(new[1])
    changed = [name for name in {**before, **figures} if before.get(name) != figures.get(name)]
    others = [name for name, status in verdicts.items() if said.get(name) != status]
    if not changed and not others:
        return [f"All {len(figures)} figures and all verdicts are the committed ones."]
    both = [name for name in changed if name in before and name in figures]
    moved = {name: figures[name] - before[name] for name in both if name.endswith(".gain")}
    return [
        f"{len(changed)} of {len(figures)} figures and {len(others)} of {len(verdicts)} verdicts differ from the committed "
        "ones, which can happen on another processor (dvc metrics diff HEAD shows all):",
        *(
            f"  {name}: {before[name]} to {figures[name]} ({moved[name]:+.6g})"
            for name in sorted(moved, key=lambda name: -abs(moved[name]))[:_LARGEST]
        ),
        *(f"  {name}: {said.get(name, '-')} to {verdicts[name]}" for name in others),
    ]


def _files(place: str, overlaid: bool) -> tuple[str, str, str]:
    asked = f"{place}/study.json" if overlaid else "params.yaml"
    return f"{place}/metrics.json", f"{place}/tables/verdicts.csv", asked


def _figures(text: str) -> dict[str, Any]:
    """Return the figures by key, such as `arms.case.gain`."""
    [row] = pd.json_normalize(json.loads(text)).to_dict("records")
    return {str(name): value for name, value in row.items()}


def _statuses(text: str) -> dict[str, str]:
    return dict(parse_table(text)[["hypothesis", "status"]].itertuples(index=False))


def _asked(text: str) -> object:
    told = yaml.safe_load(text)
    return told.get("params", told)
