"""Parameters with some other values, and a results/study.json for one job, as the workflow would write it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from rlvr_debug.blocks import checked, told
from rlvr_debug.checkout import ROOT
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import merge
from rlvr_debug.study.resolved import Study, write_study
from rlvr_debug.trainers.base import Run


def changed(params: Params, **over: Any) -> Params:
    """Return the parameters with an overlay's keys over them, each checked by itself."""
    return checked(Params, merge(told(params), over), "params")


def study_file(
    folder: Path, params: Params, run: Run | None = None, rows: Path | None = None
) -> Path:
    """Return its path, under `folder`, where a job is to run. rows: what the run trains on, put in its place."""
    study = Study(params, ROOT, (run,) if run else (), {}, {}, folder / "results")
    path = study.results / "study.json"
    write_study(study, path)
    if run and rows:
        place = study.rows(run.environment, "train")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(rows, place)
    return path
