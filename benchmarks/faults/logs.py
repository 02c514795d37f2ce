"""The log of a run as TRL's trainer would have written it with a vLLM sampler: what a user of any trainer can read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from rlvr_debug.files import write_json, write_jsonl
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.training import TrainingResult
from rlvr_debug.sampling.chat import Chat

__all__ = ["write_log"]

# that TRL 1.16.0 logs and our metrics have under the same name and definition (docs/diagnostics.md)
_KEYS = (
    *("step", "loss", "grad_norm", "learning_rate", "entropy", "kl"),
    *(f"completions/{k}_length" for k in ("mean", "min", "max")),
    *(f"completions/{k}_terminated_length" for k in ("mean", "min", "max")),
    "completions/clipped_ratio",
    *(f"clip_ratio/{k}" for k in ("low_mean", "low_min", "high_mean", "high_max", "region_mean")),
    *(f"tools/{k}_frequency" for k in ("call", "failure")),
    *(f"sampling/sampling_logp_difference/{k}" for k in ("mean", "max")),
    *(f"sampling/importance_sampling_ratio/{k}" for k in ("min", "mean", "max")),
)


def write_log(
    result: TrainingResult,
    scored: Sequence[float],
    settings: TrainingSettings,
    chat: Chat,
    out: Path,
) -> None:
    """trainer_state.json and completions.jsonl. scored: of every rollout, the reward that was trained on."""
    size = settings.prompts_per_step * settings.group_size
    history = []
    for row in result.metrics:
        first = (int(row["step"]) - 1) * size
        rewards = torch.tensor(scored[first : first + size]).view(-1, settings.group_size)
        mean, std = float(rewards.mean()), float(rewards.std())
        history.append(
            {
                **{key: row[key] for key in _KEYS if key in row},
                "reward": mean,
                "reward_std": std,
                "rewards/environment/mean": mean,
                "rewards/environment/std": std,
                "frac_reward_zero_std": float((rewards.std(1) < 1e-8).float().mean()),
            }
        )
    completions = [
        {
            "step": kept["step"],
            **_conversation(kept["sampled"]),
            "environment": scored[(kept["step"] - 1) * size + kept["rollout"]],
            "advantage": kept["advantage"],
        }
        for kept in result.rollouts
    ]
    state = {"global_step": settings.steps, "max_steps": settings.steps, "logging_steps": 1}
    write_json(
        out / "trainer_state.json", {**state, "train_batch_size": size, "log_history": history}
    )
    write_jsonl(out / "completions.jsonl", completions)


def _conversation(sampled: dict[str, Any]) -> dict[str, str]:
    """Prompt, and completion as messages. sampled: of a line of rollouts.jsonl."""
    tokens = zip(sampled["role"], sampled["text"], strict=True)
    turns = [
        (role, "".join(t for _, t in texts)) for role, texts in groupby(tokens, lambda x: x[0])
    ]
    names = {"a": "assistant", "t": "tool"}
    messages = [{"role": names[role], "content": text} for role, text in turns if role != "p"]
    return {"prompt": turns[0][1], "completion": json.dumps(messages)}
