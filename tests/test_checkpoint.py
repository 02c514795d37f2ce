"""A run that was interrupted anywhere ends as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr_debug.causes import stages_with
from rlvr_debug.checkout import ROOT
from rlvr_debug.files import write_jsonl
from rlvr_debug.grpo.settings import DiagnosticSettings, TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.trainer import train_step
from rlvr_debug.grpo.training import Checkpoints, TrainingResult
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.study.arms import runs
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers import Run
from tests import small
from tests.small import small_training
from tests.study_file import study_file

PARAMS = load_params(ROOT / "params.yaml")
SMALL: dict[str, Any] = {"steps": 6, "save_steps": 2, "prompts_per_step": 2, "group_size": 3}
SETTINGS = replace(small.SETTINGS, **SMALL)
# with which those of each run are compared: they part in the first step
OTHER = stages_with(["attention-from-loss-mask"])

Interrupted = Callable[..., TrainingResult]


class KilledError(Exception):
    pass


@pytest.fixture
def interrupted(chat: Chat, talkative: Callable[[int], Any], tmp_path: Path) -> Interrupted:
    """(settings, stages, after) -> a run that dies in step after + 1 and is begun again."""
    trained = small_training(chat, talkative)

    def run(
        settings: TrainingSettings,
        stages: Stages | None = None,
        after: int | None = None,
        fingerprints: tuple[str, str] = ("", ""),
    ) -> TrainingResult:
        stages = stages or Stages()
        steps = 0

        def dying(*given: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps - 1 == after:
                raise KilledError
            return stages.loss_mask(*given)

        def once(fingerprint: str, used: Stages) -> TrainingResult:
            return trained(
                used,
                Checkpoints(tmp_path / "checkpoint", fingerprint, settings.save_steps),
                DiagnosticSettings(rollouts_every=1, rollouts_kept=2),
                other=OTHER,
                **asdict(settings),
            )

        if after is not None:
            with pytest.raises(KilledError):
                once(fingerprints[0], replace(stages, loss_mask=dying))
        return once(fingerprints[1], stages)

    return run


def assert_same(one: TrainingResult, other: TrainingResult) -> None:
    assert json.dumps(one.metrics) == json.dumps(other.metrics)
    assert one.parted == other.parted == {"attention_mask": 1}
    assert json.dumps(one.rollouts) == json.dumps(other.rollouts)
    assert len(one.seconds) == len(other.seconds) == len(one.metrics)
    assert one.weights.keys() == other.weights.keys()
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)


KINDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "as by default": ({}, []),
    "LoRA": ({"lora_r": 4, "lora_alpha": 8}, []),
    "two updates a batch, a schedule": (
        {"num_iterations": 2, "lr_scheduler_type": "cosine", "warmup_steps": 3},
        [],
    ),
    "a sampler that stays behind": ({}, ["stale-sampler"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_died_in_any_step_ends_with_the_same_bytes(
    kind: str, interrupted: Interrupted, tmp_path: Path
) -> None:
    changes, faults = KINDS[kind]
    # before a checkpoint, after one, and in the step after that; what is restored is so after one
    settings, stages = replace(SETTINGS, steps=4, **changes), stages_with(faults)
    whole = interrupted(settings, stages)
    assert len(whole.metrics) == settings.steps
    for after in (2,) if changes or faults else range(1, settings.steps):
        Checkpoints(tmp_path / "checkpoint", "", 1).remove()
        assert_same(interrupted(settings, stages, after), whole)


def test_steps_before_the_checkpoint_are_not_made_again(
    interrupted: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(*given: Any) -> Any:
        made.append(1)
        return train_step(*given)

    monkeypatch.setattr("rlvr_debug.grpo.trainer.train_step", counted)
    interrupted(SETTINGS, after=5)
    assert len(made) == 6 + (6 - 4)


def test_a_run_that_is_given_something_else_starts_anew(interrupted: Interrupted) -> None:
    whole = interrupted(SETTINGS)
    slower = replace(SETTINGS, learning_rate=1e-4)
    interrupted(slower, fingerprints=("", "of the slower"))
    assert_same(interrupted(SETTINGS, fingerprints=("", "of this")), whole)


def test_a_checkpoint_that_was_being_written_is_passed_over(
    interrupted: Interrupted, tmp_path: Path
) -> None:
    whole = interrupted(SETTINGS)
    Checkpoints(tmp_path / "checkpoint", "", 1).remove()
    (tmp_path / "checkpoint" / ".00000004.1.tmp").mkdir(parents=True)
    assert_same(interrupted(SETTINGS, after=3), whole)
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["00000006"]


def test_the_sampler_gives_back_what_it_was_given(talkative: Callable[[int], Any]) -> None:
    model = talkative(0)
    weights = model.state_dict()
    found = InProcessSampler(model.config.to_dict(), weights, {0}).weights()
    expected = set(weights) - ({"lm_head.weight"} if model.config.tie_word_embeddings else set())
    assert set(found) == expected
    assert all(torch.equal(found[name], weights[name]) for name in found)


# --- the job itself, killed


def job(run: Run, rows: Path, out: Path) -> list[str]:
    params = replace(PARAMS, diagnostics=DiagnosticSettings(rollouts_every=3, rollouts_kept=2))
    study = study_file(rows.parent / "study", params, run, rows)
    words = ["--study", str(study), "--run", run.name, "--out", str(out)]
    return [sys.executable, str(ROOT / "scripts" / "train.py"), *words]


@pytest.mark.heavy
def test_a_job_killed_with_9_ends_with_the_bytes_of_one_that_was_not(tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=8, save_steps=1)
    run = replace(next(r for r in runs(PARAMS) if r.arm == "control"), training=settings)
    rows = tmp_path / "rows.jsonl"
    write_jsonl(rows, (row.to_json() for row in small.ROWS))
    subprocess.run(job(run, rows, tmp_path / "whole"), check=True)
    killed = tmp_path / "killed"
    for step in (2, 5):
        process = subprocess.Popen(job(run, rows, killed))
        while not (killed / "checkpoint" / f"{step:08d}").exists() and process.poll() is None:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (killed / "metrics.jsonl").exists()
    subprocess.run(job(run, rows, killed), check=True)
    for name in ("metrics.jsonl", "rollouts.jsonl", "model.safetensors"):
        assert (killed / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert sorted(p.name for p in killed.iterdir()) == sorted(
        p.name for p in (tmp_path / "whole").iterdir()
    )
