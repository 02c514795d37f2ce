"""The check of a study's case that TRL trains: its program is run as a user's script is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_json
from rlvr_debug.processes import guarded, last_line, variables_apart
from rlvr_debug.trainers.base import CHECKED_STEPS, Job
from rlvr_debug.trainers.program import Program
from rlvr_debug.trainers.recording import told_to

__all__ = ["check_case"]

_CHECK = "rlvr_debug.trainers.trl.check_script"
_SCRIPT = Path(__file__).with_name("program.py")


def check_case(job: Job, program: Program) -> dict[str, Any]:
    """Return what the check says of the program's first steps (replay/answer.py).

    Raise InputError, in one line that names the run, where it ends before they were recorded.
    """
    place = job.out.with_suffix("")
    shutil.rmtree(place, ignore_errors=True)
    params, told, answer, log = (
        place / name for name in ("params.json", "check.json", "answer.json", "log.txt")
    )
    told_to(job, place, program)
    how = {"out": str(answer.resolve()), "steps": CHECKED_STEPS, "rewards": True, "record": None}
    write_json(told, how)
    python, *_ = program.argv
    argv = (python, "-m", _CHECK, *map(str, (told.resolve(), _SCRIPT, params.resolve())))
    with guarded(argv, log, variables_apart()) as process:
        status = process.wait()
    if not answer.is_file():
        run = job.run
        raise InputError(
            f"check of {run.environment}/{run.arm}: the program ended with status {status}: {last_line(log)}"
        )
    found: dict[str, Any] = read_json(answer)
    shutil.rmtree(place)
    return found
