"""The held-out evaluation of a run by the process that trained it, for the job whose result it is to take.

A process of its own would import and read all that the training has. Each evaluation is left with a digest of all
that it follows from: the job takes it where it would come to the same, and evaluates itself where it would not.
"""

from __future__ import annotations

from pathlib import Path

from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, sha256, write_json
from rlvr_debug.jobs import Evaluation
from rlvr_debug.models.places import weight_files
from rlvr_debug.study.jobs import EVALUATION_CODE, code_digest, told
from rlvr_debug.study.resolved import Study

__all__ = ["evaluate_ahead", "is_evaluated_ahead", "take_evaluation"]

_CODE = Path(__file__).parents[1]


def is_evaluated_ahead(study: Study, name: str, out: Path) -> bool:
    """Return whether the training of that run evaluates too: one process trains, and samples for both.

    out: where it writes. Elsewhere than in the study's results no job looks.
    """
    one = study.trainer.evaluates and not study.params.launch.config
    job = study.evaluation(study.run(name).environment, name)
    return one and not job.sampling.served and out.resolve() == _left(job).parent.resolve()


def evaluate_ahead(study: Study, name: str) -> None:
    """Evaluate the run that this process has trained, and leave that for its job.

    Bad input is left for the job to tell: the run is trained.
    """
    from rlvr_debug.evaluation import evaluated

    job = study.evaluation(study.run(name).environment, name)
    try:
        write_json(_left(job), {"of": _digest(job), "evaluation": evaluated(job)})
    except InputError:
        _left(job).unlink(missing_ok=True)


def take_evaluation(job: Evaluation, out: Path) -> bool:
    """Put what evaluate_ahead left to `out`, if it is of this job. Return whether it was; it is left no longer."""
    if job.weights is None or not _left(job).is_file():
        return False
    found = read_json(_left(job))
    same = bool(found["of"] == _digest(job))
    if same:
        write_json(out, found["evaluation"])
    _left(job).unlink()
    return same


def _left(job: Evaluation) -> Path:
    assert job.weights is not None, "a base model is evaluated by a job of its own"
    return job.weights.with_name("evaluated.json")


def _digest(job: Evaluation) -> str:
    """Return 12 digits of all that the evaluation follows from."""
    assert job.weights is not None
    base = job.base_model
    files = [job.weights, job.rows, *weight_files(base / "model.safetensors"), *base.glob("*.json")]
    code = [code_digest(_CODE / place) for place in EVALUATION_CODE]
    return told(job, code, {str(file): sha256(file) for file in files})
