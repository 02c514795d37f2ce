"""Train every kind of kinds.yaml with our own trainer, and keep its log as TRL would have written it with vLLM.

    python -m benchmarks.mistakes.make [--only NAME ...] [--part 0/2] [--out FILE]

One line per training in a file of gzipped JSON: kind, the rows of log_history, a few completions, and what no log
says: the environment's own reward at the start and at the end. Some ten seconds each, on one core.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.faults.case import stages_of
from benchmarks.mistakes.kinds import HERE, load_kinds
from benchmarks.mistakes.plants import PLANTS, Setup
from benchmarks.mistakes.plants.setup import Around
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare, read_rows
from rlvr_debug.environments import build_environment
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.trainer import train
from rlvr_debug.grpo.training import Observer, Step, StepRecord, TrainerState, Training
from rlvr_debug.metrics.logprobs import clip_metrics, sampler_metrics
from rlvr_debug.metrics.rollouts import conversation_metrics
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Limits, Rollout, rollout
from rlvr_debug.serving.choose import base_sampler
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers.own.training import load_policy

__all__ = ["LOGS", "make"]

LOGS = HERE / "logs.jsonl.gz"
_STEPS = {"gsm8k": 18, "musique": 15, "calculator": 12}
_KEPT_GROUPS = {"gsm8k": 4, "musique": 3, "calculator": 3}
_HELDOUT_EVERY = 3
_HELDOUT_ROWS = 48
_ENDS = 4  # steps at either end, over which the environment's own reward is averaged


class _Log(Observer):
    """The rows that TRL would log: computed from what the trainer trains on, its masks and its stages."""

    def __init__(self, setup: Setup, parts: bool, heldout: Any) -> None:
        self.setup, self.parts, self.heldout = setup, parts, heldout
        self.rewards: list[float] = []
        self.told: list[Mapping[str, float]] = []
        self.true: list[float] = []
        self.kept: list[dict[str, Any]] = []
        self.last_step = 0
        # TRL logs calls where there are tools
        self.kept_names = _TRL if setup.environment.tools else _TRL[:1]

    def begin_step(self, state: TrainerState) -> None:
        self.state, self.begun = state, time.perf_counter()

    def end_step(self, step: Step) -> StepRecord:
        settings, update, batch = step.training.settings, step.update, step.experience.batch
        size, old = settings.group_size, step.update.logprobs
        rewards = torch.tensor(self.rewards).view(-1, size)
        counted = batch.loss & batch.real
        row: dict[str, Any] = {
            "step": step.number,
            "loss": fmean(update.losses) if update.losses else 0.0,
            "grad_norm": fmean(update.grad_norms) if update.grad_norms else 0.0,
            "learning_rate": float(self.state.scheduler.get_last_lr()[0]),
            "reward": float(rewards.mean()),
            "reward_std": float(rewards.std()),
            "frac_reward_zero_std": float((rewards.std(1) < 1e-8).float().mean()),
            "step_time": time.perf_counter() - self.begun,
            **self._parts(),
            **{
                k: v
                for k, v in conversation_metrics(step.rollouts).items()
                if k.startswith(self.kept_names)
            },
            **{
                k: v
                for k, v in sampler_metrics(
                    old[batch.sampled], batch.sampler[batch.sampled]
                ).items()
                if k.startswith("sampling/") and k.split("/")[-1] in ("mean", "max", "min")
            },
            "entropy": _entropy(step, counted),
        }
        if step.reference is not None and counted.any():
            kl = step.training.stages.kl(old, step.reference, settings.kl_estimator)
            row["kl"] = float(kl[counted].mean())
        if update.passes:
            clip = (settings.clip, settings.epsilon_high)
            row |= clip_metrics(
                update.passes,
                old,
                batch.sampled,
                step.experience.targets.advantages,
                clip,
                settings.importance_sampling_level,
            )
        if self.heldout and step.number % _HELDOUT_EVERY == 0:
            row["eval_reward"] = self.heldout(step)
        self.true.append(fmean(r.reward for r in step.rollouts))
        self._keep(step)
        self.rewards, self.told = [], []
        return StepRecord(row, {}, [])

    def _parts(self) -> dict[str, float]:
        names = sorted(self.told[0]) if self.parts else []
        found: dict[str, float] = {}
        for name in names or ["environment"]:
            values = [float(t[name]) for t in self.told] if names else self.rewards
            found[f"rewards/{name}/mean"] = fmean(values)
            found[f"rewards/{name}/std"] = float(torch.tensor(values).std())
        return found

    def _keep(self, step: Step) -> None:
        if step.number not in (2, self.last_step):
            return
        size = step.training.settings.group_size
        count = _KEPT_GROUPS[self.setup.context["environment"]] * min(size, 4)
        for place in range(min(count, len(step.rollouts))):
            self.kept.append(
                {
                    "step": step.number,
                    **_conversation(step.rollouts[place], step.training.chat),
                    **({k: _short(v) for k, v in self.told[place].items()} if self.parts else {}),
                    "reward": _short(self.rewards[place]),
                    "advantage": _short(float(step.experience.targets.advantages[place])),
                }
            )


_TRL = ("completions/", "tools/call_frequency", "tools/failure_frequency")


def _entropy(step: Step, counted: Any) -> float:
    """Return the mean entropy of the trained model's distribution where it is trained, in nats."""
    batch, model = step.experience.batch, step.policy.shared
    inner = getattr(model, "model", model) if hasattr(model, "module") else model
    found, tokens = 0.0, 0
    with torch.no_grad():
        for rows in torch.split(torch.arange(len(batch.ids)), 16):
            where = counted[rows][:, 1:]
            if not where.any():
                continue
            logits = inner(
                input_ids=batch.ids[rows], attention_mask=batch.attention[rows].long()
            ).logits
            logp = (logits[:, :-1][where] / step.training.settings.temperature).log_softmax(-1)
            found += float(-(logp.exp() * logp).sum())
            tokens += int(where.sum())
    return found / max(tokens, 1)


def _conversation(made: Rollout, chat: Chat) -> dict[str, str]:
    """Return the prompt as text and the completion as messages, as TRL logs them."""
    messages = [
        {"role": s.role, "content": chat.tokenizer.decode(s.ids)} for s in made.segments[1:]
    ]
    return {
        "prompt": chat.tokenizer.decode(made.segments[0].ids),
        "completion": json.dumps(messages),
    }


def make(name: str, number: int, told: Mapping[str, Any]) -> dict[str, Any]:
    """Train one run of a kind, and return its line."""
    params = load_params(ROOT / "params.yaml")
    which = told.get("environment", "gsm8k")
    settings = replace(
        params.training,
        **{
            "save_steps": 0,
            "prompts_per_step": 8,
            "steps": _STEPS[which],
            **told.get("training", {}),
        },
    )
    chat = Chat(ROOT / params.base_model)
    with tempfile.TemporaryDirectory() as folder:
        prepare(which, {**params.data_settings(which), **told.get("data", {})}, Path(folder))
        rows = read_rows(which, Path(folder) / "train.jsonl")
        heldout = read_rows(which, Path(folder) / "heldout.jsonl")[:_HELDOUT_ROWS]
    environment = build_environment(which, {**params.settings(which), **told.get("settings", {})})
    context = {"group_size": settings.group_size, "environment": which}
    setup = Setup(environment, stages_of(told.get("faults", ())), context=context)
    for plant, strength in told.get("plants", {}).items():
        setup = PLANTS[plant](setup, strength)
    sampler: Any = base_sampler(ROOT / params.base_model, chat)
    for wrap in setup.wrapped:
        sampler = wrap(sampler)
    scores = _heldout(setup, chat, heldout, params) if told.get("heldout") else None
    log = _Log(setup, bool(told.get("parts")), scores)
    log.last_step = settings.steps
    stages, judged = _noted(setup, log, settings)
    seed = random.Random(f"{name} {number}").getrandbits(31)
    training = Training(chat, judged, rows[: told.get("first")], settings, seed, stages)
    model, reference = load_policy(ROOT / params.base_model, settings)
    result = train(training, model, reference, sampler, observer=log)
    ends = log.true[:_ENDS], log.true[-_ENDS:]
    return {
        "kind": name,
        "run": number,
        "environment": which,
        "true": [_short(fmean(end)) for end in ends],
        "log_history": [{k: _short(v) for k, v in row.items()} for row in result.metrics],
        "completions": log.kept,
    }


class _Judged(Around):
    """The environment, whose reward is what the judges made of its parts: the sum, where they added some."""

    def reward(self, row: Any, parts: Mapping[str, float]) -> float:
        own = float(self.inner.reward(row, parts))
        return own + sum(v for k, v in parts.items() if k in _ADDED)


_ADDED = ("brevity", "thoroughness", "shows_work")


def _noted(setup: Setup, log: _Log, settings: TrainingSettings) -> tuple[Stages, Any]:
    """Return stages whose scores go through the judges and are noted as they are trained on."""
    judged = _Judged(setup.environment)
    inner, stages = setup.stages.score, setup.stages

    def score(made: Rollout, environment: Any) -> Mapping[str, float]:
        parts: Mapping[str, float] = inner(made, setup.environment)
        for judge in setup.judges:
            parts = judge(made, parts)
        log.rewards.append(judged.reward(made.row, parts))
        weights = setup.environment.weights
        log.told.append({k: v for k, v in parts.items() if k in weights or k in _ADDED})
        return parts

    def advantages(rewards: Any, scaling: str, epsilon: float) -> Any:
        told = log.rewards
        for change in setup.whole:
            told = change(told)
        if setup.whole:
            log.rewards = told
            rewards = torch.tensor(told).view(rewards.shape)
        return stages.advantages(rewards, scaling, epsilon)

    return replace(stages, score=score, advantages=advantages), judged


def _heldout(setup: Setup, chat: Chat, rows: Sequence[Any], params: Any) -> Any:
    """Return a function that scores what a step would save on held-out rows."""
    sampler = base_sampler(ROOT / params.base_model, chat)

    def scored(step: Step) -> float:
        sampler.load(step.training.stages.saved_weights(step.policy))
        made = rollout(
            rows,
            setup.environment,
            chat,
            sampler,
            temperature=1.0,
            seed=0,
            limits=Limits(setup.heldout_prompt, "right", 0),
        )
        sampler.reset()
        return fmean(r.reward for r in made) * setup.heldout_scale

    return scored


def _short(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) and math.isfinite(value) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+")
    parser.add_argument(
        "--part", default="0/1", help="each n-th run, so that several processes share them"
    )
    parser.add_argument("--start", type=int, default=0, help="runs from this number on")
    parser.add_argument("--out", type=Path, default=LOGS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    part, parts = (int(number) for number in args.part.split("/"))
    runs = [
        (kind.name, number, told)
        for kind in load_kinds().values()
        if not args.only or kind.name in args.only
        for number, told in kind.numbered()
        if number >= args.start
    ]
    lines = []
    for name, group in groupby(runs[part::parts], lambda run: run[0]):
        for _, number, told in group:
            begun = time.monotonic()
            line = make(name, number, told)
            lines.append(json.dumps(line))
            print(f"{name} {number}: {time.monotonic() - begun:.0f} s, {line['true']}", flush=True)
            write(lines, args.out)


def write(lines: Sequence[str], out: Path) -> None:
    """Write the lines gzipped, without the time, so that equal lines are equal bytes."""
    text = "".join(line + "\n" for line in lines).encode()
    out.write_bytes(gzip.compress(text, 9, mtime=0))


if __name__ == "__main__":
    main()
