"""Released trainers of verifiers, each in its own environment: the probes fail before a fix and pass after."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json
from rlvr_debug.processes import variables_apart
from rlvr_debug.trainers.verifiers.fixes import apply_fixes, fix_names
from rlvr_debug.venvs import build_venv

pytestmark = [pytest.mark.releases, pytest.mark.heavy]

OF_THE_BATCH = {"second-iteration"}
OF_THE_SEQUENCE = {"sequence-diff", "trained-ratio"}
OF_THE_MASK = {"context-sensitivity", "trained-ratio"}


@cache
def built(release: str) -> Path | str:
    """The interpreter, or why there is none: without an index nothing can be installed."""
    try:
        return build_venv(f"verifiers-{release}")
    except InputError as error:
        return str(error)


def python(release: str) -> Path:
    found = built(release)
    if isinstance(found, str):
        pytest.skip(found)
    return found


def probe(release: str, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run(
        python(release),
        *("lab.releases.probe", "--release", release, "--out", str(out), *options),
    )


def run(interpreter: Path, *module: str) -> subprocess.CompletedProcess[str]:
    command = [str(interpreter), "-m", *module]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=variables_apart(), check=False
    )


def measured(release: str, out: Path, *options: str) -> dict[str, Any]:
    done = probe(release, out, *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = read_json(out)
    for name, each in found["measurements"].items():
        assert f"\n{name}: {'passes' if each['passed'] else 'FAILS'}\n" in done.stdout
    for name, why in found["not_run"].items():
        assert f"{name}: not run\n    why: {why}\n" in done.stdout
        assert name not in found["measurements"]
    assert found["release"] == f"verifiers {release}"
    return dict(found["measurements"])


def failing(found: dict[str, Any]) -> set[str]:
    return {name for name, each in found.items() if not each["passed"]}


def installed(release: str) -> Path:
    [packages] = python(release).parents[1].glob("lib/python*/site-packages")
    return packages


def test_0_1_3_as_released_hides_the_context_and_trains_another_sequence(tmp_path: Path) -> None:
    found = measured("0.1.3", tmp_path / "found.json")
    assert failing(found) == OF_THE_BATCH | OF_THE_SEQUENCE | OF_THE_MASK
    changes = found["context-sensitivity"]["measured"]
    assert changes == {"mean_change_prompt": 0.0, "mean_change_tool_results": 0.0}
    assert found["sequence-diff"]["measured"]["share_of_rollouts"] == 1


def test_0_1_5_as_released_mends_the_second_iteration_alone(tmp_path: Path) -> None:
    found = measured("0.1.5.post0", tmp_path / "found.json")
    assert failing(found) == OF_THE_SEQUENCE | OF_THE_MASK
    assert found["context-sensitivity"]["measured"]["mean_change_prompt"] == 0


def test_0_1_6_as_released_mends_the_second_iteration_alone(tmp_path: Path) -> None:
    found = measured("0.1.6.post0", tmp_path / "found.json")
    assert failing(found) == OF_THE_SEQUENCE | OF_THE_MASK
    changes = found["context-sensitivity"]["measured"]
    assert changes == {"mean_change_prompt": 0.0, "mean_change_tool_results": 0.0}


def test_with_all_fixes_0_1_3_trains_what_was_sampled_and_reads_its_context(tmp_path: Path) -> None:
    apply_fixes(installed("0.1.3"), tmp_path / "fixed")
    found = measured("0.1.3", tmp_path / "found.json", "--wheel-folder", str(tmp_path / "fixed"))
    assert failing(found) == set()
    assert set(found["sequence-diff"]["measured"].values()) == {0}
    assert found["trained-ratio"]["measured"]["outside_10_percent"] == 0


def test_without_the_fix_of_the_mask_the_sequence_is_mended_and_the_context_hidden(
    tmp_path: Path,
) -> None:
    of_the_sequence = ["generation-prompt", "prompt-tools"]
    apply_fixes(installed("0.1.3"), tmp_path / "fixed", of_the_sequence)
    found = measured("0.1.3", tmp_path / "found.json", "--wheel-folder", str(tmp_path / "fixed"))
    assert failing(found) == OF_THE_BATCH | OF_THE_MASK


@pytest.mark.parametrize("name", fix_names("verifiers-0.1.3"))
def test_each_fix_applies_alone(name: str, tmp_path: Path) -> None:
    assert apply_fixes(installed("0.1.3"), tmp_path / "fixed", [name]) == [name]


def test_with_all_fixes_0_1_6_trains_what_was_sampled_and_reads_its_context(tmp_path: Path) -> None:
    release = "0.1.6.post0"
    apply_fixes(installed(release), tmp_path / "fixed")
    found = measured(release, tmp_path / "found.json", "--wheel-folder", str(tmp_path / "fixed"))
    assert failing(found) == set()


@pytest.mark.parametrize("name", fix_names("verifiers-0.1.6.post0"))
def test_each_fix_of_0_1_6_applies_alone(name: str, tmp_path: Path) -> None:
    assert apply_fixes(installed("0.1.6.post0"), tmp_path / "fixed", [name]) == [name]


def test_the_default_case_s_faults_make_the_batch_of_0_1_3() -> None:
    done = run(python("0.1.3"), "tests.release_batch")
    assert done.stdout == "differs: []\n", done.stderr


def test_another_release_than_the_one_that_is_asked_for_is_refused(tmp_path: Path) -> None:
    fixed = tmp_path / "fixed"
    apply_fixes(installed("0.1.3"), fixed)
    (fixed / "verifiers-0.1.3.dist-info" / "METADATA").write_text("Name: verifiers\nVersion: 2\n")
    done = probe("0.1.3", tmp_path / "found.json", "--wheel-folder", str(fixed))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: verifiers: found 2, expected 0.1.3"
    assert not (tmp_path / "found.json").exists()
