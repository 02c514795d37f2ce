"""The released GRPOTrainer of verifiers as a study's trainer: from its wheel, unpatched and with its fixes."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from lab.releases.checked import forked_program
from rlvr_debug.blocks import told
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, read_jsonl, read_yaml, sha256
from rlvr_debug.grpo.settings import ALL_ROLLOUTS, TrainingSettings
from rlvr_debug.models.base_model import read_tensors
from rlvr_debug.replay.answer import answer_of
from rlvr_debug.replay.check import check
from rlvr_debug.study.arms import arms, runs, unmapped
from rlvr_debug.study.checks import check_references
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers import Job, load_trainer
from rlvr_debug.trainers.program import Program
from rlvr_debug.trainers.program_record import record_program
from rlvr_debug.trainers.recording import train_with_program
from rlvr_debug.trainers.verifiers import FIELDS, config_of
from rlvr_debug.trainers.verifiers.fixes import (
    faults_of_release,
    fix_names,
    fixes_without,
    releases,
)
from rlvr_debug.venvs import build_venv
from rlvr_debug.verdicts.decide import mechanism_of
from tests.study_file import changed

CASES = read_yaml(Path(__file__).with_suffix(".yaml"))

RELEASE = "verifiers-0.1.3"
PARAMS = load_params(ROOT / "params.yaml", ROOT / "studies" / f"{RELEASE}.yaml")
TRAINER = load_trainer("verifiers")
SYNC = {"forced-sync": {"swap": ["sync"]}}


# --- what a study may ask of it


def test_each_fix_of_a_release_takes_one_fault_away() -> None:
    for release in releases():
        faults = faults_of_release(release)
        assert len(set(faults.values())) == len(faults)
        mended = fixes_without(release, [])
        assert mended == sorted(mended) == fix_names(release)
        assert set(fixes_without(release, faults.values())) == set()


def test_the_case_is_the_wheel_and_each_arm_has_its_fixes() -> None:
    found = {arm.arm: fixes_without(RELEASE, arm.faults) for arm in arms(PARAMS)}
    everything = fix_names(RELEASE)
    assert found["case"] == []
    assert found["control"] == found["random-reward"] == everything
    assert set(everything) - set(faults_of_release(RELEASE)) == {"old-logprobs"}
    for fix in faults_of_release(RELEASE):
        assert found[fix] == [fix]
        assert found[f"{fix}-alone"] == [other for other in everything if other != fix]


@pytest.mark.parametrize(("change", "line"), CASES["what the release does not have is one line"])
def test_what_the_release_does_not_have_is_one_line(
    change: Mapping[str, Any], line: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        check_references(changed(PARAMS, **change), tmp_path / "params.yaml")
    assert str(error.value).startswith(f"{tmp_path / 'params.yaml'}: {line}")
    assert "\n" not in str(error.value)


def test_every_setting_is_given_to_the_release_or_refused() -> None:
    by_hand = {"steps", "prompts_per_step", "delta", "lr_scheduler_type", "scale_rewards"}
    elsewhere = {"lora_r", "lora_alpha", "attn_implementation"}
    without_effect = {"save_steps", "logprobs_chunk"}
    known = {*FIELDS.same, *FIELDS.renamed, *FIELDS.fixed}
    assert known | by_hand | elsewhere | without_effect == {
        f.name for f in fields(TrainingSettings)
    }
    assert set(config_of(PARAMS.training, 24)) - set(FIELDS.defaults) <= FIELDS.taken


def test_an_arm_that_the_release_has_no_counterpart_for_is_not_run_and_says_so() -> None:
    swapped = changed(PARAMS, hypotheses={"lora-weight-sync": {"arms": SYNC}})
    assert unmapped(swapped) == {
        "lora-weight-sync": "trainer verifiers has no counterpart for forced-sync: stage sync"
    }
    given = {"kl_estimator": "k1", "scale_rewards": "batch", "aggregation": "dapo"}
    assert TRAINER.unmapped(given, {}) == [
        "kl_estimator k1",
        "scale_rewards batch",
        "aggregation dapo",
    ]


# --- the release at work


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The case for three small steps, to be given an arm and a folder."""
    try:
        build_venv(RELEASE)
    except InputError as error:
        pytest.skip(str(error))
    data = tmp_path_factory.mktemp("data")
    prepare("musique", {**PARAMS.data_settings("musique"), "rows": 60, "heldout": 8}, data)
    return Job(
        arm("case"),
        PARAMS.settings("musique"),
        ROOT / "models" / "tiny",
        data / "train.jsonl",
        data,
        ALL_ROLLOUTS,
        told(PARAMS.command),
    )


def train(job: Job) -> None:
    """As TRAINER does, in a fork of the release's interpreter."""
    train_with_program(job, forked_program(job))


def arm(name: str) -> Any:
    run = next(run for run in runs(PARAMS) if run.arm == name)
    small = replace(run.training, steps=3, prompts_per_step=4, warmup_steps=0)
    return replace(run, training=small)


@pytest.mark.releases
def test_the_same_seed_is_the_same_run_and_what_is_executed_is_the_wheel_s(
    job: Job, tmp_path: Path
) -> None:
    TRAINER.train(replace(job, out=tmp_path / "0"))
    train(replace(job, out=tmp_path / "1"))
    names = ("metrics.jsonl", "rollouts.jsonl", "model.safetensors", "record.json")
    first, second = ({n: sha256(tmp_path / i / n) for n in names} for i in ("0", "1"))
    assert first == second
    record = read_json(tmp_path / "0" / "record.json")
    assert record["fixes"] == []
    assert "verifiers/trainers/grpo_trainer.py" in record["files"]
    assert all(each["executed"] == each["wheel"] for each in record["files"].values())
    rows = [row for _, row in read_jsonl(tmp_path / "0" / "metrics.jsonl")]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["sequences/trained_otherwise"] == 1 for row in rows)
    # from the second on there is a KL to the base model: the weights moved
    assert rows[0]["kl"] == 0 < rows[1]["kl"]
    assert all(row["reward"] == pytest.approx(row["trainer_reward"], abs=1e-5) for row in rows)


@pytest.mark.releases
def test_with_its_fixes_the_release_trains_what_was_sampled_and_the_record_names_them(
    job: Job, tmp_path: Path
) -> None:
    train(replace(job, run=arm("control"), out=tmp_path))
    record = read_json(tmp_path / "record.json")
    assert record["fixes"] == fix_names(RELEASE)
    patched = {name for name, each in record["files"].items() if each["executed"] != each["wheel"]}
    assert patched == {"verifiers/envs/environment.py", "verifiers/trainers/grpo_trainer.py"}
    rows = [row for _, row in read_jsonl(tmp_path / "metrics.jsonl")]
    assert all(row["sequences/trained_otherwise"] == 0 for row in rows)
    assert all(row["trained_tokens"] == row["sampled_tokens"] for row in rows)


@pytest.mark.releases
def test_an_adapter_is_trained_and_saved_at_the_end(job: Job, tmp_path: Path) -> None:
    run = arm("control")
    training = replace(run.training, lora_r=4, learning_rate=0.01)
    train(replace(job, run=replace(run, training=training), out=tmp_path))
    rows = [row for _, row in read_jsonl(tmp_path / "metrics.jsonl")]
    assert rows[0]["kl"] == 0 < rows[1]["kl"]
    saved = read_tensors(tmp_path / "model.safetensors")
    moved = {name for name, tensor in saved.items() if "lora_B" in name and tensor.any()}
    assert {name.split(".")[-3] for name in moved} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    }


@pytest.mark.releases
def test_a_batch_that_is_used_twice_is_clipped_with_old_logprobs_alone(
    job: Job, tmp_path: Path
) -> None:
    clipped = {}
    for name in ("case", "control"):
        run = arm(name)
        training = replace(run.training, steps=1, num_iterations=2, learning_rate=0.01)
        train(replace(job, run=replace(run, training=training), out=tmp_path / name))
        rows = [row for _, row in read_jsonl(tmp_path / name / "metrics.jsonl")]
        clipped[name] = [row["clip_ratio/region_mean"] for row in rows]
    # one row for both updates of the batch
    assert clipped["case"] == [0]
    assert clipped["control"][0] > 0


@pytest.mark.releases
@pytest.mark.parametrize("place", ["reward", "sampler"])
def test_an_exception_ends_the_run_in_one_line_at_once(
    place: str, job: Job, tmp_path: Path
) -> None:
    """The release would take a reward function's for a reward of 0, and wait for the generator's thread."""
    program = TRAINER.program(job.command)  # type: ignore[attr-defined]
    broken = str(ROOT / "tests" / "programs" / "failing_release.py")
    argv = (program.argv[0], broken, place, RELEASE)
    with pytest.raises(InputError) as error:
        train_with_program(replace(job, out=tmp_path), Program(argv, 60, apart=True))
    line = str(error.value)
    assert line.startswith("run musique/case/0: the program ended with status 2: error: ")
    assert "ValueError: broken on purpose" in line
    assert "\n" not in line
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.releases
def test_the_release_deviates_where_its_defects_are_and_nowhere_once_they_are_fixed(
    job: Job, tmp_path: Path
) -> None:
    found = {}
    for name in ("case", "control"):
        own = replace(job, run=arm(name), out=tmp_path / f"{name}.json")
        record = record_program(own, forked_program(own), 2)
        found[name] = answer_of(record, check(record))
    deviating = {s["segment"] for s in found["case"]["segments"] if s["status"] == "deviates"}
    assert {"tokens", "model inputs"} <= deviating
    assert mechanism_of("hidden-context", found["case"]).present
    assert mechanism_of("sequence-mismatch", found["case"]).present
    later = {s["segment"] for s in found["control"]["segments"] if s["status"] == "deviates"}
    # a later turn may be rendered otherwise than it was sampled, with all fixes too
    assert later <= {"tokens"}
