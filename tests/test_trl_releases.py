"""TRL's released trainers, each in its own environment: a bug is found in the broken release, clear in the mended one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_releases
from lab.releases.table import (
    BUGS,
    RELEASES,
    Release,
    missing,
    read_results,
    releases_text,
    results_of,
    write_results,
)
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json
from rlvr_debug.processes import variables_apart
from rlvr_debug.venvs import build_venv, venv_names

TRL = [release for release in RELEASES if release.package == "trl"]
# also where the bug is not the one that the pair is about: what 0.14.0 reads of the padding depends on the cut
FAILING = {
    "0.14.0": {"trained-ratio", "micro-batch-invariance"},
    "0.14.0 at 0.9": {"sampler-ratio", "trained-ratio", "micro-batch-invariance"},
    "0.15.2": set(),
    "0.15.2 at 0.9": {"sampler-ratio", "trained-ratio"},
    "0.16.1": {"micro-batch-invariance"},
    "0.16.1 at 0.9": {"micro-batch-invariance"},
    "0.22.2": set(),
    "0.22.2 at 0.9": set(),
}


def python(release: Release) -> Path:
    try:
        return build_venv(release.environment)
    except InputError as error:
        pytest.skip(str(error))


def failing(report: Any) -> set[str]:
    assert not isinstance(report, str), report
    return {name for name, each in report["measurements"].items() if not each["passed"]}


@pytest.mark.heavy
@pytest.mark.releases
@pytest.mark.parametrize("release", TRL, ids=[release.column for release in TRL])
def test_a_known_bug_is_found_in_the_broken_release_and_clear_in_the_mended_one(
    release: Release,
) -> None:
    python(release)
    report = bench_releases.probed(release)
    assert failing(report) == FAILING[release.column]
    assert not isinstance(report, str)
    assert report["release"] == f"trl {release.version}"
    assert "trl/trainer/grpo_trainer.py" in report["files"]
    assert not report["not_run"].keys() & report["measurements"].keys()
    result = {each.probe: each.result for each in results_of(release, report)}
    assert {bug.probe: result[bug.probe] for bug in BUGS if bug.broken == release} == {
        bug.probe: "fails" for bug in BUGS if bug.broken == release
    }
    assert {bug.probe: result[bug.probe] for bug in BUGS if bug.mended == release} == {
        bug.probe: "passes" for bug in BUGS if bug.mended == release
    }


# what is changed in 0.22.2: file, before, after; and the probes that must say so
MUTATIONS = {
    "the end of a reply is not trained": (
        "grpo_trainer.py",
        "(sequence_indices <= eos_idx.unsqueeze(1))",
        "(sequence_indices < eos_idx.unsqueeze(1))",
        {"token-roles"},
    ),
    "the prompt is hidden": (
        "grpo_trainer.py",
        "attention_mask = torch.cat([prompt_mask, completion_mask], dim=1)",
        "attention_mask = torch.cat([0 * prompt_mask, completion_mask], dim=1)",
        {"context-sensitivity", "trained-ratio"},
    ),
    "advantages stay where they were when the rows are shuffled": (
        "grpo_trainer.py",
        "generation_batch = shuffle_sequence_dict(generation_batch)",
        'generation_batch = {**shuffle_sequence_dict(generation_batch), "advantages": generation_batch["advantages"]}',
        {"group-integrity"},
    ),
    "the policy is pushed away from the reference": (
        "grpo_trainer.py",
        "per_token_loss + self.beta * per_token_kl",
        "per_token_loss - self.beta * per_token_kl",
        {"kl-estimator", "kl-gradient", "loss-gradient"},
    ),
    "a reward is handed the text of another": (
        "grpo_trainer.py",
        "prompts=prompts, completions=completions, completion_ids=completion_ids_list",
        "prompts=prompts, completions=completions[::-1], completion_ids=completion_ids_list",
        {"reward-audit"},
    ),
    # under other packages than its own, so that these are not what makes the difference
    "the loss is that of 0.16.1": (
        "grpo_config.py",
        'default="dapo"',
        'default="bnpo"',
        {"micro-batch-invariance"},
    ),
}


@pytest.mark.heavy
@pytest.mark.releases
@pytest.mark.parametrize("what", MUTATIONS)
def test_what_is_broken_in_a_sound_release_is_found(what: str, tmp_path: Path) -> None:
    release = Release("trl", "0.22.2")
    interpreter = python(release)
    [packages] = interpreter.parents[1].glob("lib/python*/site-packages")
    wheel = tmp_path / "wheel"
    for name in ("trl", "trl-0.22.2.dist-info"):
        shutil.copytree(packages / name, wheel / name)
    name, right, wrong, probes = MUTATIONS[what]
    file = wheel / "trl" / "trainer" / name
    text = file.read_text(encoding="utf-8")
    assert right in text
    file.write_text(text.replace(right, wrong), encoding="utf-8")
    out = tmp_path / "report.json"
    command = [str(interpreter), "-m", "lab.releases.probe", "--package", "trl"]
    command += ["--release", "0.22.2", "--out", str(out), "--wheel-folder", str(wheel)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=variables_apart(), check=False
    )
    assert done.returncode == 0, done.stderr
    assert probes <= failing(read_json(out))


def test_every_release_has_an_environment_of_its_own_and_a_line_for_each_probe() -> None:
    found = read_results()
    probes = list(dict.fromkeys(each.probe for each in found))
    for release in RELEASES:
        assert release.environment in venv_names()
        assert [each.probe for each in found if each.of(release)] == probes
    assert len(found) == len(RELEASES) * len(probes)
    for each in found:
        assert each.result in ("passes", "fails", "not run")
        assert bool(each.why) == (each.result == "not run") == (not each.value)


def test_nothing_in_the_root_takes_the_place_of_a_release_s_packages() -> None:
    # a probe runs from the root, which is then first on the path; folders without __init__.py come last on it
    assert [file.parent.name for file in ROOT.glob("*/__init__.py")] == ["lab"]
    assert list(ROOT.glob("*.py")) == []


def test_every_known_bug_is_found_and_clear_in_the_table_that_is_shipped() -> None:
    assert missing(read_results()) == []


def test_a_release_that_cannot_be_run_is_said_to_be_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unreachable(name: str) -> Path:
        raise InputError(f"envs/{name}.txt: it could not be installed: no index")

    monkeypatch.setattr(bench_releases, "build_venv", unreachable)
    release = BUGS[0].mended
    report = bench_releases.probed(release)
    why = f"envs/{release.environment}.txt: it could not be installed: no index"
    assert report == why
    found = [each for each in read_results() if not each.of(release)] + results_of(release, report)
    write_results(found, tmp_path / "releases.csv")
    found = read_results(tmp_path / "releases.csv")
    assert f"in {release.column}: {why}" in releases_text(found)
    assert missing(found) == [
        f"{BUGS[0].source}: {BUGS[0].probe} not run in trl {release.column}, expected that it passes"
    ]
