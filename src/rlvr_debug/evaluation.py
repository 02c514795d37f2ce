"""Held-out evaluation: always greedy and at the training temperature.

Reward that rises only when sampled is sharpening, not learning.

A run may be evaluated by the process that trained it, ahead of the job whose result it is: a process of its own would
import and read all that the training has. Such an evaluation is left with a digest of all that it follows from: the job
takes it where it would come to the same, and evaluates itself where it would not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr_debug.data.prepare import read_rows
from rlvr_debug.data.rows import Row
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Environment
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, sha256, write_json
from rlvr_debug.jobs import Evaluation, settings_digest
from rlvr_debug.models.places import weight_files
from rlvr_debug.sampling.base import Sampler

# what samples needs torch, which a job that takes an evaluation does without: it is imported where it is called
if TYPE_CHECKING:
    from rlvr_debug.sampling.chat import Chat
    from rlvr_debug.sampling.rollouts import Rollout

_BATCH = 128  # rollouts in step; bounds memory


def evaluate_model(job: Evaluation, out: Path) -> None:
    """Evaluate the base model, or trained weights, on held-out rows into a JSON file."""
    write_json(out, evaluated(job))


def evaluated(job: Evaluation) -> dict[str, Any]:
    """Return what `evaluate` finds of the base model, or of trained weights."""
    from rlvr_debug.models.base_model import one_thread
    from rlvr_debug.sampling.chat import Chat
    from rlvr_debug.sampling.generate import sampler_of

    one_thread()
    chat = Chat(job.base_model)
    rows = read_rows(job.environment, job.rows)
    environment = build_environment(job.environment, job.settings)
    with sampler_of(job.sampling, job.base_model, job.weights, chat) as sampler:
        return evaluate(
            rows, environment, chat, sampler, temperature=job.temperature, seed=job.seed
        )


def evaluate(
    rows: Sequence[Row],
    environment: Environment,
    chat: Chat,
    sampler: Sampler,
    *,
    temperature: float,
    seed: int,
) -> dict[str, Any]:
    """Mean reward, its parts, outcomes and counted errors of tool calls, `sampled` (at `temperature`) and `greedy`."""
    from rlvr_debug.sampling.rollouts import rollout

    def judged(at: float) -> dict[str, Any]:
        done: list[Rollout] = []
        for start in range(0, len(rows), _BATCH):
            batch = rows[start : start + _BATCH]
            done += rollout(batch, environment, chat, sampler, temperature=at, seed=seed + start)
        return _summary(done)

    return {
        "rows": len(rows),
        "temperature": temperature,
        "sampled": judged(temperature),
        "greedy": judged(0.0),
    }


def _summary(rollouts: list[Rollout]) -> dict[str, Any]:
    by_hops = defaultdict(list)
    outcomes: Counter[str] = Counter()
    call_errors: Counter[str] = Counter()
    for current in rollouts:
        by_hops[str(current.row.hops)].append(current.reward)
        outcomes[current.outcome] += 1
        call_errors += current.call_errors
    return {
        "reward": _mean([current.reward for current in rollouts]),
        # in the order of the rows
        "rewards": [current.reward for current in rollouts],
        "parts": {
            name: _mean([current.parts[name] for current in rollouts]) for name in rollouts[0].parts
        },
        "reward_by_hops": {hops: _mean(rewards) for hops, rewards in sorted(by_hops.items())},
        "outcomes": dict(sorted(outcomes.items())),
        "turns": _mean([current.turns for current in rollouts]),
        "call_errors": dict(sorted(call_errors.items())),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# --- ahead of its job


def evaluate_ahead(job: Evaluation) -> None:
    """Evaluate the run that this process has trained, and leave that for its job, which tells of bad input."""
    try:
        found = evaluated(job)
        write_json(_left(job), {"of": _digest(job), "evaluation": found})
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
