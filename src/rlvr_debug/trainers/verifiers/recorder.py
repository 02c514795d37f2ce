"""What a run of a released trainer records: a row of metrics per batch, and some of its B rollouts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from rlvr_debug.environments.base import Environment
from rlvr_debug.files import write_jsonl
from rlvr_debug.grpo.settings import DiagnosticSettings
from rlvr_debug.metrics.rollouts import batch_metrics
from rlvr_debug.sampling.rollouts import Rollout
from rlvr_debug.trainers.verifiers.server import Server

if TYPE_CHECKING:
    from rlvr_debug.trainers.verifiers.task import Generated

# what the release logs under the names and with the meanings of docs/diagnostics.md
_KEPT = ("kl", "learning_rate", "loss", "grad_norm", "clip_ratio/")


class Recorder(TrainerCallback):  # type: ignore[misc] # transformers' types are not read
    """Rewards and rollouts are our environment's; loss, gradient norm, KL and clip ratios the release's."""

    def __init__(
        self, out: Path, environment: Environment, server: Server, settings: DiagnosticSettings
    ) -> None:
        self._out, self._environment, self._server, self._settings = (
            out,
            environment,
            server,
            settings,
        )
        self._rollouts: list[Rollout] = []
        self._processed: Any = None
        self._inputs: list[tuple[Tensor, Tensor, Tensor]] = []
        self._advantages = torch.zeros(0)
        self._steps = 0
        self._kept: list[dict[str, Any]] = []

    def on_batch(self, made: Generated) -> None:
        """Hold a batch until its step is logged."""
        self._rollouts, self._processed, self._inputs = made.rollouts, made.processed, []

    def attach(self, trainer: Any) -> None:
        """Read the advantages, and what each loss is computed from."""
        advantages, inner = trainer._compute_advantages, trainer.compute_loss

        def compute_advantages(rewards: Tensor) -> Tensor:
            self._advantages = advantages(rewards)
            return self._advantages

        def compute_loss(model: Any, inputs: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
            attention = inputs["attention_mask"]
            # the release has one mask for both, a fixed one a mask of its own for the loss
            loss = inputs.get("completion_mask", attention)
            self._inputs += zip(inputs["input_ids"], attention, loss, strict=True)
            return inner(model, inputs, *args, **kwargs)

        trainer._compute_advantages, trainer.compute_loss = compute_advantages, compute_loss

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        if not logs or "reward" not in logs:
            return
        self._steps += 1
        row = {
            "step": self._steps,
            "trainer_reward": float(logs["reward"]),
            **{name: float(value) for name, value in logs.items() if name.startswith(_KEPT)},
            **self._of_batch(args.num_generations),
        }
        with (self._out / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if self._settings.keeps_rollouts_of(self._steps):
            self._kept += self._lines()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        write_jsonl(self._out / "rollouts.jsonl", self._kept)

    def _of_batch(self, size: int) -> dict[str, Any]:
        rollouts, sequences = self._rollouts, self._sequences()
        differing = sum(ids != each.ids for ids, each in zip(sequences, rollouts, strict=True))
        later, otherwise = self._server.take_counts()
        return {
            **batch_metrics(rollouts, self._environment.success, size),
            "sampled_tokens": sum(sum(rollout.sampled) for rollout in rollouts),
            "trained_tokens": sum(map(sum, self._processed.completion_mask)),
            "sequences/trained_otherwise": differing / len(rollouts),
            "sequences/rendered_otherwise": otherwise / later if later else 0.0,
        }

    def _sequences(self) -> list[list[int]]:
        """Return what is trained on."""
        pairs = zip(self._processed.prompt_ids, self._processed.completion_ids, strict=True)
        return [prompt + completion for prompt, completion in pairs]

    def _lines(self) -> list[dict[str, Any]]:
        rewards, count = self._processed.rewards, self._settings.rollouts_kept or None
        columns = (self._rollouts, rewards, self._advantages.tolist(), self._sequences())
        return [
            {
                "step": self._steps,
                "row": rollout.row.id,
                "ids": rollout.ids,
                "sampled": [int(bit) for bit in rollout.sampled],
                "logprobs": [value for s in rollout.segments for value in s.logprobs],
                "reward": float(reward),
                "advantage": advantage,
                "trained": self._seen(sequence),
            }
            for rollout, reward, advantage, sequence in list(zip(*columns, strict=True))[:count]
        ]

    def _seen(self, sequence: list[int]) -> dict[str, list[int]]:
        """Return what the loss was given of a sequence, whose place the release shuffled."""
        size, wanted = len(sequence), torch.tensor(sequence)
        attention, loss = next(
            (attention, loss)
            for ids, attention, loss in self._inputs
            if len(ids) >= size and torch.equal(ids[:size].cpu(), wanted)
        )
        return {
            "ids": sequence,
            "loss": loss[:size].int().tolist(),
            "attention": attention[:size].int().tolist(),
        }
