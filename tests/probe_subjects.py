"""Trainers to probe: random models that like tool calls, so that some of a group earn a reward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rlvr_debug.causes import stages_with
from rlvr_debug.checkout import ROOT
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Environment
from rlvr_debug.environments.musique.synthetic import synthetic_musique
from rlvr_debug.grpo.policy import build_policy
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.probes import PROBES, Subject
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.sampling.rollouts import rollout
from rlvr_debug.study.params import load_params

__all__ = [
    "DRAWS",
    "SETTINGS",
    "Build",
    "draw",
    "failing",
    "subject_of",
    "with_faults",
    "with_rewards",
    "with_settings",
    "with_stage",
]

Build = Callable[[int], Any]

SETTINGS = replace(
    load_params(ROOT / "params.yaml").training,
    steps=1,
    prompts_per_step=4,
    group_size=4,
    learning_rate=1e-3,
    temperature=0.9,
)
DRAWS = range(20)
# seeds of models that call their tools rightly once in a while; others never do, earn nothing and have
# no contrast in their groups, which the audit of rewards is right to report
_MODELS = (1, 3, 9, 10, 11)
# what a random model can earn weighs most
_WEIGHTS = {
    "exact_match": 0.1,
    "f1": 0.1,
    "recall": 1,
    "precision": 1,
    "citation": 0.1,
    "format": 0.1,
}


def subject_of(
    chat: Chat, build: Build, model: int, environment: Environment, rows: list[Any], seed: int
) -> Subject:
    policy = build_policy(build(model), build(model), SETTINGS, seed)
    weights = policy.weights()
    sampler = InProcessSampler(policy.model.config.to_dict(), weights, chat.ends)
    rollouts = rollout(
        [row for row in rows for _ in range(SETTINGS.group_size)],
        environment,
        chat,
        sampler,
        temperature=SETTINGS.temperature,
        seed=seed,
    )
    return Subject(policy, sampler, Stages(), SETTINGS, environment, chat, rollouts)


def draw(chat: Chat, build: Build, seed: int) -> Subject:
    """A healthy trainer: a random model, random rows and what it says to them."""
    environment = build_environment(
        "musique",
        {
            "retrieval": "golden",
            "top_n": 2,
            "max_turns": 3,
            "max_new_tokens": 24,
            "weights": _WEIGHTS,
        },
    )
    rows = list(synthetic_musique(4, hops={2: 1}, paragraphs=4, same_relation=0, seed=seed))
    return subject_of(chat, build, _MODELS[seed % len(_MODELS)], environment, rows, seed)


def failing(subject: Subject) -> set[str]:
    """Names of the probes that fail."""
    return {found.probe for found in (probe(subject) for probe in PROBES) if not found.passed}


def with_faults(subject: Subject, *faults: str) -> Subject:
    return replace(subject, stages=stages_with(faults))


def with_stage(subject: Subject, **stages: Any) -> Subject:
    return replace(subject, stages=replace(subject.stages, **stages))


def with_settings(subject: Subject, **changes: Any) -> Subject:
    return replace(subject, settings=replace(subject.settings, **changes))


def with_rewards(subject: Subject, *rewards: float) -> Subject:
    """The same rollouts, of which every group earned this."""
    rollouts = [
        replace(current, parts=dict.fromkeys(current.parts, earned), reward=earned)
        for i, current in enumerate(subject.rollouts)
        for earned in [rewards[i % len(rewards)]]
    ]
    return replace(subject, rollouts=rollouts)
