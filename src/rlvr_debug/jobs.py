"""Arguments of the jobs of a study, but for trainings (trainers/__init__.py): plain values, and files by their paths.

The workflow writes it to results/jobs.json, so that no job imports what resolves a study.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from rlvr_debug.errors import InputError, hint
from rlvr_debug.files import read_json, write_text

T = TypeVar("T")


def settings_digest(*values: Any) -> str:
    """Return 12 digits of all that a job reads of the study, in whatever order its keys are: it runs again where they are others."""
    return hashlib.sha256(_text(values).encode()).hexdigest()[:12]


def write_jobs(study: Path, jobs: Mapping[str, Any]) -> None:
    write_text(study.with_name("jobs.json"), _text(jobs))


def read_job(study: Path, name: str, kind: type[T]) -> T:
    """Read the arguments of the job of that name. study: results/study.json, beside which it stands."""
    path = study.with_name("jobs.json")
    jobs = read_json(path)
    if not isinstance(jobs, dict) or name not in jobs:
        raise InputError(f"{path}: no job '{name}': {hint(name, jobs)}")
    try:
        return TypeAdapter(kind).validate_python(jobs[name])
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, [name, *first["loc"]]))
        raise InputError(f"{path}: key '{key}': {first['msg']}") from None


def _text(values: Any) -> str:
    return json.dumps(values, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    # shallow: json calls again for nested values, while dataclasses.asdict copies all of it
    return vars(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


@dataclass(frozen=True)
class Sampling:
    """Who answers a job's rollouts. endpoint: the file of a server that jobs share; without, a served job starts its own."""

    sampler: str = "in-process"
    server: Mapping[str, Any] = field(default_factory=dict)
    endpoint: Path | None = None

    @property
    def served(self) -> bool:
        """Whether a server answers, and not the job's own process."""
        return self.sampler != "in-process"


@dataclass(frozen=True)
class Trained:
    """A server's policies while they are trained: their highest adapter rank, 0 for full weights, and how many at once."""

    lora_r: int
    policies: int


@dataclass(frozen=True)
class Serving:
    """The job of a server that others share. trained: None where it has the base model."""

    base_model: Path
    sampling: Sampling
    trained: Trained | None


@dataclass(frozen=True)
class Evaluation:
    """A held-out evaluation. weights: None for the base model's; code: a digest of the code that evaluates."""

    environment: str
    settings: Mapping[str, Any]
    base_model: Path
    weights: Path | None
    rows: Path
    temperature: float
    seed: int
    sampling: Sampling
    code: str = ""
