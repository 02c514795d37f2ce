"""The case of a study as the subject of the probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlvr_debug.arms import Run
from rlvr_debug.data.prepare import read_rows
from rlvr_debug.environments import build_environment
from rlvr_debug.faults import faulty_stages
from rlvr_debug.files import write_json
from rlvr_debug.grpo.policy import build_policy
from rlvr_debug.probes import PROBES, Measurement, Subject
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import rollout
from rlvr_debug.serving.choose import base_sampler
from rlvr_debug.study import enough_rows, load_policy, one_thread

__all__ = ["case_subject", "probe_case"]


def probe_case(
    run: Run, environment: Mapping[str, Any], base_model: Path, rows: Path, out: Path
) -> list[Measurement]:
    """Step-0 checks of the case's trainer, also into a JSON file: measurement by probe name."""
    subject = case_subject(run, environment, base_model, rows)
    measurements = [probe(subject) for probe in PROBES]
    write_json(out, {m.probe: asdict(m) for m in measurements})
    return measurements


def case_subject(run: Run, environment: Mapping[str, Any], base_model: Path, rows: Path) -> Subject:
    """The case's trainer before its first update, with rollouts of its first rows."""
    one_thread()
    training, chat = run.training, Chat(base_model)
    policy = build_policy(*load_policy(base_model, training), training, run.seed)
    built = build_environment(run.environment, {**environment, **run.rollouts})
    sampler = base_sampler(base_model, chat)
    prompts = enough_rows(read_rows(run.environment, rows), run, rows)
    prompts = prompts[: training.prompts_per_step]
    stages = faulty_stages(run.faults)
    rollouts = rollout(
        [row for row in prompts for _ in range(training.group_size)],
        built,
        chat,
        sampler,
        temperature=training.temperature,
        seed=run.seed,
        max_prompt_length=training.max_prompt_length,
        truncation_side=training.truncation_side,
        max_new_tokens=stages.max_new_tokens(built),
    )
    return Subject(policy, sampler, stages, training, built, chat, rollouts)
