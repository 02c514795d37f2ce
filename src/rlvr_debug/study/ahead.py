"""The held-out evaluation of a run by the process that trained it, for the job whose result it is to take.

A process of its own would import and read all that the training has. Each evaluation is left with a digest of all
that it follows from: the job takes it where it would come to the same, and evaluates itself where it would not.
"""

from importlib import import_module
from pathlib import Path

from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, sha256, write_json
from rlvr_debug.jobs import Evaluation, settings_digest
from rlvr_debug.models.places import weight_files


def evaluate_ahead(job: Evaluation) -> None:
    """Evaluate the run that this process has trained, and leave that for its job, which tells of bad input."""
    # by name: other code that evaluates trains nothing again
    evaluation = import_module("rlvr_debug.evaluation")
    try:
        evaluated = evaluation.evaluated(job)
        write_json(_left(job), {"of": _digest(job), "evaluation": evaluated})
    except InputError:
        _left(job).unlink(missing_ok=True)


def take_evaluation(job: Evaluation, out: Path) -> bool:
    """Put what evaluate_ahead left to `out`, if it is of this job. Return whether it was; it is left no longer."""
    if job.weights is None or not _left(job).is_file():
        return False
    left = read_json(_left(job))
    same = bool(left["of"] == _digest(job))
    if same:
        write_json(out, left["evaluation"])
    _left(job).unlink()
    return same


def _left(job: Evaluation) -> Path:
    assert job.weights is not None, "a base model is evaluated by a job of its own"
    return job.weights.with_name("evaluated.json")


def _digest(job: Evaluation) -> str:
    assert job.weights is not None
    base = job.base_model
    files = [job.weights, job.rows, *weight_files(base / "model.safetensors"), *base.glob("*.json")]
    return settings_digest(job, {str(file): sha256(file) for file in files})
