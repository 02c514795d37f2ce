"""Our environment as a user of the release writes one, a MultiTurnEnv and reward functions, in the release's environment."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from verifiers import MultiTurnEnv, Rubric

from rlvr_debug.data.rows import Row
from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.sampling.rollouts import Rollout, Segment, add_reply, add_score
from rlvr_debug.trainers.verifiers.server import Server, sample_of


@dataclass(frozen=True)
class Generated:
    """A batch of rollouts, as ours and as the release has it: messages, scores by reward function, its sequences and masks."""

    rollouts: list[Rollout]
    prompts: list[Any]
    completions: list[Any]
    scores: list[Mapping[str, float]]
    processed: Any


class Task(MultiTurnEnv):  # type: ignore[misc] # the release's types are not read
    """Rows of ours, their tools, and a reward function for each part of the reward, whose errors on_error is given."""

    def __init__(
        self,
        rows: Sequence[Row],
        environment: Environment,
        stages: Stages,
        server: Server,
        on_batch: Callable[[Generated], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._rows, self._environment, self._stages = rows, environment, stages
        self._server, self._on_batch, self._on_error = server, on_batch, on_error
        weights = environment.weights
        super().__init__(
            dataset=Dataset.from_list(
                [
                    {
                        "prompt": environment.messages(row),
                        "answer": row.answer,
                        "info": {"index": i},
                    }
                    for i, row in enumerate(rows)
                ]
            ),
            oai_tools=environment.tools or None,
            rubric=Rubric(
                funcs=[self._part(name) for name in weights],
                weights=[weight / sum(weights.values()) for weight in weights.values()],
            ),
            max_turns=environment.max_turns,
        )

    def _part(self, name: str) -> Callable[..., float]:
        def part(state: Any) -> float:
            try:
                rollout: Rollout = state["rollout"]
                if not rollout.parts:
                    add_score(rollout, self._environment)
                found = self._stages.score(rollout, self._environment)[name]
                state.setdefault("scores", {})[name] = found
                return found
            except Exception as error:
                self._on_error(error)
                raise

        part.__name__ = name
        return part

    async def run_rollouts(self, *given: Any, infos: Any, **named: Any) -> Any:
        """Number a batch's rollouts: the release starts them in the order of a set, which is another in each process."""
        numbered = [{**info, "slot": slot} for slot, info in enumerate(infos)]
        return await super().run_rollouts(*given, infos=numbered, **named)

    async def rollout(self, client: Any, *given: Any, **named: Any) -> Any:
        arguments = inspect.signature(super().rollout).bind(client, *given, **named).arguments
        # 0.1.6.post0 numbers the rollouts of a batch itself
        slot = arguments["example_id"] if "example_id" in arguments else arguments["info"]["slot"]
        return await super().rollout(self._server.client(slot), *given, **named)

    async def setup_state(self, state: Any, **_: Any) -> Any:
        row, chat = self._rows[state["info"]["index"]], self._server.chat
        prompt = chat.prompt(self._environment.messages(row), self._environment.tools)
        state["rollout"] = Rollout(row, [Segment("prompt", prompt)])
        return state

    async def is_completed(self, messages: Any, state: Any, **_: Any) -> bool:
        """Note a reply that is not noted yet, and say whether the rollout ended with it."""
        rollout, responses = state["rollout"], state["responses"]
        if rollout.turns < len(responses):
            sample, last = sample_of(responses[-1]), len(responses) == self.max_turns
            state["results"] = add_reply(
                rollout, sample, self._environment, self._server.chat, last=last
            )
        return bool(rollout.outcome)

    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        texts = tuple(result.text for result in state["results"])
        state["rollout"].segments.append(
            Segment("tool", self._server.chat.tool_turn(texts), texts=texts)
        )
        answers = [
            {"role": "tool", "content": text, "tool_call_id": str(i)}
            for i, text in enumerate(texts)
        ]
        return answers, state

    def process_env_results_vllm(self, **named: Any) -> Any:
        found = super().process_env_results_vllm(**named)
        states = named["states"]
        self._on_batch(
            Generated(
                rollouts=[state["rollout"] for state in states],
                prompts=named["prompts"],
                completions=named["completions"],
                scores=[state["scores"] for state in states],
                processed=found,
            )
        )
        return found
