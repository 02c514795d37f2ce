"""Released trainers under the check, each in its own environment: what deviates is the known bug, and only where it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lab.releases.checked import checked_release, release_job
from lab.releases.checks import (
    PAIRS,
    Release,
    Subject,
    checks_of,
    checks_text,
    missing,
    read_checks,
    write_checks,
)
from rlvr_debug.errors import InputError
from rlvr_debug.files import sha256
from rlvr_debug.trainers import load_trainer
from rlvr_debug.trainers.program import ProgramTrainer
from rlvr_debug.trainers.recording import record
from rlvr_debug.trainers.verifiers.fixes import fix_names
from rlvr_debug.venvs import build_venv

V_0_1_3 = Release("verifiers", "0.1.3")
FIXES = tuple(fix_names("verifiers-0.1.3"))
NO_TOOLS = "the prompt is rendered without the tools"
ALONE = "turns of tools are rendered alone and without generation prompt"
BOTH = "the prompt is rendered without the tools, and turns of tools alone and without generation prompt"
OF_THE_MASK = "the loss mask is the attention mask"


# --- the table that is shipped


def test_a_release_that_cannot_be_run_is_said_to_be_so(tmp_path: Path) -> None:
    broken = PAIRS[0].broken
    rest = [each for each in read_checks() if not each.of(broken)]
    write_checks([*rest, *checks_of(broken, "no index")], tmp_path / "checks.csv")
    found = read_checks(tmp_path / "checks.csv")
    assert missing(found) == [
        f"{PAIRS[0].source}: {PAIRS[0].segment} not run in trl {broken.column}, expected that it deviates"
    ]
    assert "not run" in checks_text(found)


def test_fixes_that_no_run_has_by_themselves_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a run has none, expected old-logprobs"):
        release_job(Subject(V_0_1_3, ("old-logprobs",)), tmp_path)


# --- the releases at work


@cache
def answer(subject: Subject) -> Mapping[str, Any]:
    try:
        build_venv(subject.release.environment)
    except InputError as error:  # without an index nothing can be installed
        pytest.skip(str(error))
    found = checked_release(subject)
    assert not isinstance(found, str), found
    return found


def deviating(subject: Subject) -> dict[str, set[str]]:
    """Return the names of each segment that deviates."""
    return {
        each["segment"]: {name["name"] for name in each["names"]}
        for each in answer(subject)["segments"]
        if each["status"] == "deviates"
    }


@pytest.mark.releases
@pytest.mark.heavy
@pytest.mark.parametrize("pair", PAIRS, ids=[f"{pair.source}: {pair.what}" for pair in PAIRS])
def test_a_known_bug_deviates_in_the_broken_release_and_not_in_the_mended_one(pair: Any) -> None:
    for subject in (pair.broken, pair.mended):
        shipped = [each for each in read_checks() if each.of(subject)]
        found = checks_of(subject, answer(subject))
        assert [(e.segment, e.status) for e in found] == [(e.segment, e.status) for e in shipped]
    assert pair.segment in deviating(pair.broken)
    assert pair.segment not in deviating(pair.mended)


@pytest.mark.releases
@pytest.mark.heavy
def test_each_fix_of_0_1_3_mends_its_own_segment_and_no_other() -> None:
    as_released = deviating(Subject(V_0_1_3))
    of_the_mask = {segment: names for segment, names in as_released.items() if OF_THE_MASK in names}
    assert set(of_the_mask) == {"model inputs", "reference log-probabilities"}
    assert set(as_released) == {"tokens", *of_the_mask}
    assert BOTH in as_released["tokens"]
    mended = deviating(Subject(V_0_1_3, ("attention-mask",)))
    assert mended == {"tokens": as_released["tokens"]}
    for fix, left in (("generation-prompt", NO_TOOLS), ("prompt-tools", ALONE)):
        found = deviating(Subject(V_0_1_3, (fix,)))
        assert found.keys() == as_released.keys()
        assert left in found["tokens"]
        assert BOTH not in found["tokens"]
    assert deviating(Subject(V_0_1_3, FIXES)) == {}


@pytest.mark.releases
@pytest.mark.heavy
def test_replies_that_the_server_renders_otherwise_deviate_with_all_fixes_too() -> None:
    warm = (("temperature", 1.5), ("prompts_per_step", 16))
    found = deviating(Subject(V_0_1_3, FIXES, warm))
    assert found.keys() == {"tokens"}
    assert "the sampler's next turn reads earlier replies rendered again" in found["tokens"]


@pytest.mark.releases
@pytest.mark.heavy
@pytest.mark.parametrize(
    "settings",
    [
        (("gradient_accumulation_steps", 2), ("kl_beta", 0.04), ("temperature", 0.8)),
        # such a rate spoils the policy within three steps, and at 0.6 it writes replies that are rendered otherwise
        (("lora_r", 4), ("learning_rate", 0.01), ("temperature", 0.3)),
        (("num_iterations", 2), ("learning_rate", 0.01)),
    ],
)
def test_a_fixed_release_agrees_under_other_settings(
    settings: tuple[tuple[str, float], ...],
) -> None:
    assert deviating(Subject(V_0_1_3, FIXES, settings)) == {}


@pytest.mark.releases
@pytest.mark.heavy
def test_a_recorded_run_ends_in_the_same_bytes(tmp_path: Path) -> None:
    answer(Subject(V_0_1_3))  # or skipped
    trainer = load_trainer("verifiers")
    assert isinstance(trainer, ProgramTrainer)
    job = release_job(Subject(V_0_1_3), tmp_path)
    short = replace(job.run, training=replace(job.run.training, steps=2))
    ended = []
    for recorded in (False, True):
        out = tmp_path / str(recorded)
        record(replace(job, run=short, out=out), trainer.program(job.command), recorded=recorded)
        assert (out / "attempt" / "out" / "record").is_dir() == recorded
        ended.append(sha256(out / "attempt" / "out" / "model.safetensors"))
    assert ended[0] == ended[1]
