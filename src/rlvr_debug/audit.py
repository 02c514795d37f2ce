"""Reward audit: what policies that know everything, or nothing, earn on every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr_debug.data.prepare import read_rows
from rlvr_debug.environments import build_environment, task_of
from rlvr_debug.environments.task import Policy
from rlvr_debug.files import write_json
from rlvr_debug.sampling.base import Request, Sample
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import rollout

__all__ = ["ScriptedSampler", "audit_rewards"]


class ScriptedSampler:
    """Encodes what `policy` says of a request's row in its turn (from 0): a script in the place of a model.

    An oracle must earn everything, a spoiler that knows nothing must lose: else the reward is wrong.
    """

    def __init__(self, policy: Policy, chat: Chat) -> None:
        self._policy, self._chat = policy, chat
        self._turns: dict[int, int] = {}

    def sample(
        self, requests: list[Request], *, temperature: float, max_new_tokens: int, seed: int
    ) -> list[Sample]:
        """Scripts are never cut: `max_new_tokens` limits models."""
        samples = []
        for request in requests:
            turn = self._turns.get(request.slot, 0)
            self._turns[request.slot] = turn + 1
            ids = [*self._chat.encode(self._policy(request.row, turn)), self._chat.eos_id]
            samples.append(Sample(ids, [0.0] * len(ids), stopped=True))
        return samples


def audit_rewards(
    environment_name: str,
    environment: Mapping[str, Any],
    base_model: Path,
    rows: Sequence[Path],
    out: Path,
) -> None:
    """What scripted policies earn on every row of the files, into a JSON file.

    By policy and retrieval: rows, the mean and the lowest reward, and of each part the mean and the
    lowest. `oracle_beaten`: rows on which the spoiler earns what the oracle does, or more.
    """
    chat = Chat(base_model)
    every = [row for path in rows for row in read_rows(environment_name, path)]
    retrievals = [environment["retrieval"], "golden"] if "retrieval" in environment else [None]
    report: dict[str, Any] = {}
    rewards: dict[str, list[float]] = {}
    for retrieval in dict.fromkeys(retrievals):
        settings = {**environment, "retrieval": retrieval} if retrieval else environment
        built = build_environment(environment_name, settings)
        for name, policy in task_of(environment_name).policies.items():
            sampler = ScriptedSampler(policy, chat)
            done = rollout(every, built, chat, sampler, temperature=0.0, seed=0)
            key = f"{name} {retrieval}" if retrieval else name
            rewards[name] = [current.reward for current in done]
            report[key] = {
                "rows": len(done),
                "reward": _mean_and_lowest(rewards[name]),
                **{
                    part: _mean_and_lowest([current.parts[part] for current in done])
                    for part in done[0].parts
                },
            }
    pairs = zip(every, rewards["oracle"], rewards["spoiler"], strict=True)
    report["oracle_beaten"] = [row.id for row, oracle, spoiler in pairs if spoiler >= oracle]
    write_json(out, report)


def _mean_and_lowest(values: list[float]) -> dict[str, float]:
    return {"mean": sum(values) / len(values), "lowest": min(values)}
