"""Parameters with some other values, and a results/study.json for one job, as the workflow would write it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlvr_debug.blocks import checked, told
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params, merge
from rlvr_debug.study.resolved import Study, write_study
from rlvr_debug.trainers import Run


def changed(params: Params, **over: Any) -> Params:
    """Return the parameters with an overlay's keys over them, each checked by itself."""
    return checked(Params, merge(told(params), over), "params")


def overlaid(folder: Path, **values: Any) -> Params:
    """Return the shipped parameters with an overlay over them: `mine.yaml` of that folder."""
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"study": "mine", **values}), encoding="utf-8")
    return load_params(ROOT / "params.yaml", path)


def refused(folder: Path, **values: Any) -> str:
    """Return what is wrong with such an overlay: one line, without the file's name."""
    with pytest.raises(InputError) as caught:
        overlaid(folder, **values)
    assert str(caught.value).startswith(f"{folder / 'mine.yaml'}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{folder / 'mine.yaml'}: ")


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
