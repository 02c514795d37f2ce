"""Our diagnostics of any run of TRL's GRPOTrainer: a callback, and a wrapper for its reward functions.

    recorder = RunRecorder(Path("run"))
    trainer = GRPOTrainer(..., reward_funcs=[recorder.watched(f) for f in functions], callbacks=[recorder])
    recorder.attach(trainer)
    trainer.train()

It writes metrics.jsonl as it goes and rollouts.jsonl at the end, as in docs/trainers.md. Of the trainer it
uses what is public: callbacks, what reward functions are given, and `compute_loss`, whose inputs it reads.

Axes: B rollouts of a batch, C completion tokens.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from rlvr_debug.environments.base import Environment
from rlvr_debug.files import write_jsonl
from rlvr_debug.grpo.policy import Policy
from rlvr_debug.grpo.settings import NO_ROLLOUTS, DiagnosticSettings
from rlvr_debug.metrics import weights
from rlvr_debug.metrics.rollouts import batch_metrics
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout, rebuilt, written

RewardFunction = Callable[..., list[float]]

# what TRL logs under the names and with the meanings of docs/diagnostics.md
_KEPT = (
    *("reward", "reward_std", "frac_reward_zero_std"),
    *("kl", "entropy", "learning_rate", "loss", "grad_norm"),
)
_KEPT_GROUPS = ("clip_ratio/", "completions/", "tools/", "sampling/")


@dataclass(frozen=True)
class Judge:
    """What rewards are held against: our environment, and its rows by the dataset's column `index`."""

    environment: Environment
    rows: Sequence[Any]
    chat: Chat

    def rollout(self, index: int, completion: Sequence[int]) -> Rollout:
        """Return the model's reply to that row's prompt, with the environment's reward."""
        row, environment = self.rows[index], self.environment
        prompt = self.chat.prompt(environment.messages(row), environment.tools)
        sampled = [False] * len(prompt) + written(completion, self.chat)
        return rebuilt(row, [*prompt, *completion], sampled, [], environment, self.chat)


@dataclass
class _Batch:
    """What the reward functions were given, and what they returned: one entry per rollout."""

    completion_ids: list[list[int]]
    index: list[int] | None
    rewards: dict[str, list[float]] = field(default_factory=dict)
    # by (prompt, completion): which completion tokens the loss counts, and the advantage
    trained: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[list[int], float]] = field(
        default_factory=dict
    )


class RunRecorder(TrainerCallback):  # type: ignore[misc] # transformers' types are not read
    """Writes a row of metrics per batch of rollouts, in one process; with a judge, `reward` is the environment's own."""

    def __init__(
        self,
        out: Path,
        judge: Judge | None = None,
        settings: DiagnosticSettings = NO_ROLLOUTS,
    ) -> None:
        self._out, self._judge, self._settings = out, judge, settings
        self._batch: _Batch | None = None
        self._expected: weights.ExpectedChange | None = None
        self._changes: list[weights.WeightChange] = []
        self._steps = 0
        self._rollouts: list[dict[str, Any]] = []
        self._weights: dict[str, float] = {}
        out.mkdir(parents=True, exist_ok=True)

    def watched(self, function: RewardFunction, weight: float = 1.0) -> RewardFunction:
        """The same reward function; what it is given and returns is kept for the step's row."""
        name = getattr(function, "__name__", type(function).__name__)
        self._weights[name] = weight

        def watching(prompts: Any, completions: Any, completion_ids: Any, **columns: Any) -> Any:
            batch = self._batch
            if batch is None or name in batch.rewards:
                batch = _Batch([list(ids) for ids in completion_ids], columns.get("index"))
                self._batch = batch
            rewards = function(
                prompts=prompts, completions=completions, completion_ids=completion_ids, **columns
            )
            batch.rewards[name] = [math.nan if value is None else float(value) for value in rewards]
            return rewards

        watching.__name__ = name
        return watching

    def attach(self, trainer: Any) -> None:
        """Read what each loss is computed from: which tokens count, and the advantages."""
        inner = trainer.compute_loss

        def compute_loss(model: Any, inputs: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
            if self._batch is not None:
                self._read(inputs)
            return inner(model, inputs, *args, **kwargs)

        trainer.compute_loss = compute_loss

    def _read(self, inputs: Mapping[str, Any]) -> None:
        assert self._batch is not None
        counted = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages")
        columns = (inputs[name] for name in names)
        for prompt, real, ids, mask, advantage, counts in zip(*columns, counted, strict=True):
            key = (tuple(prompt[real.bool()].tolist()), tuple(ids[mask.bool()].tolist()))
            self._batch.trained[key] = (counts[mask.bool()].int().tolist(), float(advantage))

    def on_pre_optimizer_step(self, *_: Any, model: Any, optimizer: Any, **__: Any) -> None:
        self._expected = weights.expected_change(_policy(model), optimizer)

    def on_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        if self._expected is not None:
            self._changes.append(weights.weight_change(self._expected, _policy(model)))
            self._expected = None

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        if not logs or "reward" not in logs or self._batch is None:
            return
        self._steps += 1
        batch, self._batch = self._batch, None
        kept = {k: float(v) for k, v in logs.items() if k in _KEPT or k.startswith(_KEPT_GROUPS)}
        row = {"step": self._steps, **kept, **self._of_batch(batch, args)}
        if self._changes:
            row |= weights.change_metrics(self._changes)
            self._changes = []
        with (self._out / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def on_train_end(self, *_: Any, **__: Any) -> None:
        write_jsonl(self._out / "rollouts.jsonl", self._rollouts)

    def _of_batch(self, batch: _Batch, args: Any) -> dict[str, Any]:
        """What the rollouts say, whatever the trainer makes of them."""
        given = torch.zeros(len(batch.completion_ids))
        for name, values in batch.rewards.items():
            given += self._weights[name] * torch.nan_to_num(torch.tensor(values))
        sizes: dict[str, Any] = {"trainer_reward": float(given.mean())}
        if self._judge is None or batch.index is None:
            sampled = sum(map(len, batch.completion_ids))
            counts = {ids: sum(loss) for (_, ids), (loss, _) in batch.trained.items()}
            trained = sum(counts[tuple(ids)] for ids in batch.completion_ids) if counts else sampled
            return {**sizes, "sampled_tokens": sampled, "trained_tokens": trained}
        rollouts = [
            self._judge.rollout(index, ids)
            for index, ids in zip(batch.index, batch.completion_ids, strict=True)
        ]
        seen = [_seen(batch, *each) for each in zip(batch.completion_ids, rollouts, strict=True)]
        if self._settings.keeps_rollouts_of(self._steps):
            kept = list(zip(rollouts, given.tolist(), seen, strict=True))
            self._rollouts += [
                {
                    "step": self._steps,
                    "row": rollout.row.id,
                    "ids": rollout.ids,
                    "sampled": [int(bit) for bit in rollout.sampled],
                    "reward": reward,
                    **trained,
                }
                for rollout, reward, trained in kept[: self._settings.rollouts_kept or None]
            ]
        sampled = sum(sum(rollout.sampled) for rollout in rollouts)
        known = [sum(each["loss"]) for each in seen if each]
        return {
            **sizes,
            **batch_metrics(rollouts, self._judge.environment.success, args.num_generations),
            "sampled_tokens": sampled,
            "trained_tokens": sum(known) if known else sampled,
        }


def _seen(batch: _Batch, completion: list[int], rollout: Rollout) -> dict[str, Any]:
    """Which tokens of the whole sequence the loss counts, and the advantage, where both were seen."""
    prompt = rollout.segments[0].ids
    found = batch.trained.get((tuple(prompt), tuple(completion)))
    return {"loss": [0] * len(prompt) + found[0], "advantage": found[1]} if found else {}


def _policy(model: Any) -> Policy:
    adapter = model if hasattr(model, "peft_config") else None
    return Policy(model, adapter, None)
