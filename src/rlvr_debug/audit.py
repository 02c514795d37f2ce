"""Reward audit: what policies that know everything, or nothing, earn on every row."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from rlvr_debug.data.prepare import read_rows
from rlvr_debug.environments import build_environment, task_of
from rlvr_debug.environments.base import Environment
from rlvr_debug.environments.task import Policy
from rlvr_debug.files import write_json
from rlvr_debug.sampling.base import Request, Sample
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import rollout

_TOGETHER = 256  # rows: less than the prompts that a Chat remembers


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
    policies = task_of(environment_name).policies
    built = _by_retrieval(environment_name, environment)
    scores: dict[str, list[dict[str, float]]] = {
        f"{name}{retrieval}": [] for retrieval in built for name in policies
    }
    # every policy on some rows before the next rows, so that a prompt is rendered once
    for start in range(0, len(every), _TOGETHER):
        some = every[start : start + _TOGETHER]
        for retrieval, name in product(built, policies):
            sampler = ScriptedSampler(policies[name], chat)
            done = rollout(some, built[retrieval], chat, sampler, temperature=0.0, seed=0)
            scores[f"{name}{retrieval}"] += [{"reward": each.reward, **each.parts} for each in done]
    report: dict[str, Any] = {
        key: {
            "rows": len(of_rows),
            **{part: _mean_and_lowest([each[part] for each in of_rows]) for part in of_rows[0]},
        }
        for key, of_rows in scores.items()
    }
    last = [*built][-1]
    pairs = zip(every, scores[f"oracle{last}"], scores[f"spoiler{last}"], strict=True)
    report["oracle_beaten"] = [
        row.id for row, oracle, spoiler in pairs if spoiler["reward"] >= oracle["reward"]
    ]
    write_json(out, report)


def _by_retrieval(name: str, settings: Mapping[str, Any]) -> dict[str, Environment]:
    """Return the environment with its own retrieval and then the golden one, by what ends a policy's name in the report."""
    if "retrieval" not in settings:
        return {"": build_environment(name, settings)}
    return {
        f" {retrieval}": build_environment(name, {**settings, "retrieval": retrieval})
        for retrieval in dict.fromkeys([settings["retrieval"], "golden"])
    }


def _mean_and_lowest(values: list[float]) -> dict[str, float]:
    return {"mean": sum(values) / len(values), "lowest": min(values)}
