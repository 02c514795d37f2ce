"""A study of an overlay under DVC: a stage as the default's, in the study's own folder."""

import os
import shlex
from pathlib import Path
from typing import Any

import yaml

from rlvr_debug.blocks import told
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import write_text
from rlvr_debug.study.folder import study_folder
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params
from rlvr_debug.study.resolved import own_programs, own_rows, resolve

Stage = dict[str, Any]
# but for what DVC keeps
_IN_GIT = (".gitignore", "dvc.yaml", "dvc.lock", "notes/", "results/")


def track(overlay: Path, every_phase: bool = False, root: Path = ROOT) -> Path:
    """Write dvc.yaml, with the default's stage, and .gitignore into the folder of the overlay's study, and return it."""
    params = load_params(root / "params.yaml", overlay)
    root, overlay = root.resolve(), overlay.resolve()
    if not overlay.is_relative_to(root):
        raise InputError(f"{overlay}: is outside {root}; move it there, so that git can keep it")
    folder = study_folder(params, overlay, root)
    default = yaml.safe_load((root / "dvc.yaml").read_text(encoding="utf-8"))
    stage = _stage(default["stages"]["study"], params, overlay, folder, root, every_phase)
    stages = yaml.safe_dump({**default, "stages": {"study": stage}}, sort_keys=False)
    outs = [
        each if isinstance(each, dict) else {each: {}}
        for each in (*stage["outs"], *stage["metrics"])
    ]
    # those that DVC keeps, and git does not
    cached = [path for out in outs for path, how in out.items() if how.get("cache", True)]
    rules = [*(f"!/{name}" for name in _IN_GIT), *(f"/{path}" for path in cached)]
    written = f"# Written by `make track` from the project's dvc.yaml and {overlay.name}.\n"
    write_text(folder / "dvc.yaml", written + stages)
    write_text(folder / ".gitignore", written + "".join(f"{rule}\n" for rule in rules))
    return folder


def _stage(
    default: Stage, params: Params, overlay: Path, folder: Path, root: Path, every_phase: bool
) -> Stage:
    def here(path: str | Path) -> str:
        return os.path.relpath(root / path, folder)

    config = [f"overlay={here(overlay)}", *(["phases=all"] if every_phase else [])]
    words = ["snakemake", "--snakefile", here("workflow/Snakefile"), "--config", *config]
    study = resolve(params, root)
    own = [path for name in study.environments for path in own_rows(params.data[name], root)]
    models = map(params.base_model_of, study.environments)
    # what a revision names does not change
    own += [model.folder for model in models if not model.revision]
    own += own_programs(params, root)
    venvs = study.trainer.venvs(told(params.command))
    venvs += params.sampler_venvs
    own += [f"envs/{name}.txt" for name in venvs]
    return {
        **default,
        "desc": f"the study {params.study}, from files to verdicts",
        "cmd": shlex.join(words),
        "params": [{here("params.yaml"): None}, {here(overlay): None}],
        "deps": list(dict.fromkeys(map(here, [*default["deps"], *own]))),
    }
