"""Held-out evaluation: always greedy and at the training temperature.

Reward that rises only when sampled is sharpening, not learning.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr_debug.data.prepare import read_rows
from rlvr_debug.data.rows import Row
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Environment
from rlvr_debug.files import write_json
from rlvr_debug.jobs import Evaluation
from rlvr_debug.models.base_model import one_thread
from rlvr_debug.sampling.base import Sampler
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.generate import sampler_of
from rlvr_debug.sampling.rollouts import Rollout, rollout

_BATCH = 128  # rollouts in step; bounds memory


def evaluate_model(job: Evaluation, out: Path) -> None:
    """Evaluate the base model, or trained weights, on held-out rows into a JSON file."""
    write_json(out, evaluated(job))


def evaluated(job: Evaluation) -> dict[str, Any]:
    """Return what `evaluate` finds of the base model, or of trained weights."""
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
