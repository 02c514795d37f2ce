"""Released trainers under the check, and the applier of their patches."""

import runpy
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lab.releases.checked import checked_release, forked_program, release_job
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
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import sha256
from rlvr_debug.trainers.recording import record
from rlvr_debug.trainers.verifiers.fixes import apply_fixes, fix_names
from rlvr_debug.venvs import build_venv

V_0_1_3 = Release("verifiers", "0.1.3")
FIXES = tuple(fix_names("verifiers-0.1.3"))
NO_TOOLS = "the prompt is rendered without the tools"
ALONE = "turns of tools are rendered alone and without generation prompt"
BOTH = "the prompt is rendered without the tools, and turns of tools alone and without generation prompt"
OF_THE_MASK = "the loss mask is the attention mask"


# --- the table that is shipped


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
@pytest.mark.parametrize("pair", PAIRS, ids=[f"{pair.source}: {pair.what}" for pair in PAIRS])
def test_a_known_bug_deviates_in_the_broken_release_and_not_in_the_mended_one(pair: Any) -> None:
    for subject in (pair.broken, pair.mended):
        shipped = [each for each in read_checks() if each.of(subject)]
        found = checks_of(subject, answer(subject))
        assert [(e.segment, e.status) for e in found] == [(e.segment, e.status) for e in shipped]
    assert pair.segment in deviating(pair.broken)
    assert pair.segment not in deviating(pair.mended)


@pytest.mark.releases
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
def test_replies_that_the_server_renders_otherwise_deviate_with_all_fixes_too() -> None:
    warm = (("temperature", 1.5), ("prompts_per_step", 16))
    found = deviating(Subject(V_0_1_3, FIXES, warm))
    assert found.keys() == {"tokens"}
    assert "the sampler's next turn reads earlier replies rendered again" in found["tokens"]


@pytest.mark.releases
@pytest.mark.parametrize(
    "settings",
    [
        (("gradient_accumulation_steps", 2), ("kl_beta", 0.04), ("temperature", 0.8)),
        # at 0.01 the policy is spoilt within three steps, and some of its replies are rendered otherwise
        (("lora_r", 4), ("learning_rate", 0.001), ("temperature", 0.3)),
        (("num_iterations", 2), ("learning_rate", 0.01)),
    ],
)
def test_a_fixed_release_agrees_under_other_settings(
    settings: tuple[tuple[str, float], ...],
) -> None:
    assert deviating(Subject(V_0_1_3, FIXES, settings)) == {}


@pytest.mark.releases
def test_a_recorded_run_ends_in_the_same_bytes(tmp_path: Path) -> None:
    answer(Subject(V_0_1_3))  # or skipped
    job = release_job(Subject(V_0_1_3), tmp_path)
    short = replace(job.run, training=replace(job.run.training, steps=2))
    ended = []
    for recorded in (False, True):
        out = tmp_path / str(recorded)
        record(replace(job, run=short, out=out), forked_program(job), recorded=recorded)
        assert (out / "attempt" / "out" / "record").is_dir() == recorded
        ended.append(sha256(out / "attempt" / "out" / "model.safetensors"))
    assert ended[0] == ended[1]


# --- the applier of patches, on small releases


RELEASE = "verifiers-1.0"
LINES = [f"line {number}\n" for number in range(20)]


def patch_of(file: str, number: int) -> str:
    """Puts a line `mended` after line `number` of the file."""
    before, after = LINES[number - 1 : number + 1], LINES[number + 1 : number + 3]
    return "".join(
        [
            f"diff --git a/{file} b/{file}\n--- a/{file}\n+++ b/{file}\n@@ -{number},4 +{number},5 @@\n",
            *(f" {line}" for line in before),
            "+mended\n",
            *(f" {line}" for line in after),
        ]
    )


@pytest.fixture
def fixes(tmp_path: Path) -> Path:
    folder = tmp_path / "fixes" / RELEASE
    folder.mkdir(parents=True)
    (folder / "first.patch").write_text(patch_of("verifiers/a.py", 3))
    (folder / "second.patch").write_text(patch_of("verifiers/a.py", 12))
    return tmp_path / "fixes"


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    (folder / "verifiers" / "__pycache__").mkdir(parents=True)
    (folder / "verifiers" / "a.py").write_text("".join(LINES))
    (folder / f"{RELEASE}.dist-info").mkdir()
    (folder / f"{RELEASE}.dist-info" / "METADATA").write_text("Name: verifiers\n")
    (folder / "torch").mkdir()
    return folder


@pytest.fixture
def wheel(tmp_path: Path, unpacked: Path) -> Path:
    path = tmp_path / f"{RELEASE}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("verifiers/a.py", f"{RELEASE}.dist-info/METADATA"):
            archive.write(unpacked / name, name)
    return path


def mended(out: Path) -> list[int]:
    """After which lines."""
    lines = (out / "verifiers" / "a.py").read_text().splitlines()
    return [i - k for k, i in enumerate(i for i, line in enumerate(lines, -1) if line == "mended")]


@pytest.mark.parametrize("source", ["wheel", "unpacked"])
def test_all_patches_apply_together_to_a_copy(
    source: str, fixes: Path, tmp_path: Path, request: pytest.FixtureRequest, unpacked: Path
) -> None:
    out = tmp_path / "new" / "out"
    assert apply_fixes(request.getfixturevalue(source), out, fixes=fixes) == ["first", "second"]
    assert mended(out) == [3, 12]
    assert sorted(path.name for path in out.iterdir()) == ["verifiers", f"{RELEASE}.dist-info"]
    assert [path.name for path in (out / "verifiers").iterdir()] == ["a.py"]
    assert (unpacked / "verifiers" / "a.py").read_text() == "".join(LINES)
    assert list(out.parent.iterdir()) == [out]


def test_a_patch_applies_alone(wheel: Path, fixes: Path, tmp_path: Path) -> None:
    assert apply_fixes(wheel, tmp_path / "out", ["second"], fixes) == ["second"]
    assert mended(tmp_path / "out") == [12]


def test_inside_a_repository_nothing_is_skipped(wheel: Path, fixes: Path, tmp_path: Path) -> None:
    # git would take the patch's paths from the repository's root
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    apply_fixes(wheel, tmp_path / "deeper" / "out", fixes=fixes)
    assert mended(tmp_path / "deeper" / "out") == [3, 12]


def assert_refused(source: Path, out: Path, fixes: Path, says: str, *only: str) -> None:
    before = set(out.parent.iterdir())
    with pytest.raises(InputError) as caught:
        apply_fixes(source, out, only or None, fixes)
    assert says in str(caught.value)
    assert set(out.parent.iterdir()) == before


def test_a_patch_that_does_not_apply_leaves_nothing_and_names_the_place(
    unpacked: Path, fixes: Path, tmp_path: Path
) -> None:
    other = [*LINES[:12], "another\n", *LINES[13:]]
    (unpacked / "verifiers" / "a.py").write_text("".join(other))
    says = f"fixes/{RELEASE}/second.patch: patch failed: verifiers/a.py:12, expected"
    assert_refused(unpacked, tmp_path / "out", fixes, says)


def test_a_patch_is_not_applied_twice(wheel: Path, fixes: Path, tmp_path: Path) -> None:
    apply_fixes(wheel, tmp_path / "once", fixes=fixes)
    says = f"fixes/{RELEASE}/first.patch: patch failed"
    assert_refused(tmp_path / "once", tmp_path / "twice", fixes, says)


def test_what_is_no_release_is_refused(wheel: Path, fixes: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text, empty = tmp_path / "text.whl", tmp_path / "empty"
    text.write_text("no zip")
    empty.mkdir()
    assert_refused(text, out, fixes, f"{text}: File is not a zip file, expected a wheel")
    assert_refused(tmp_path / "none.whl", out, fixes, "none.whl: No such file or directory")
    assert_refused(empty, out, fixes, f"{empty}: found 0 folders *.dist-info, expected exactly one")
    assert_refused(wheel, wheel, fixes, f"{wheel}: exists; give a new folder")


def test_an_unknown_fix_or_release_is_refused(wheel: Path, fixes: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    says = f"fixes/{RELEASE}/third.patch: no such file, expected one of first, second"
    assert_refused(wheel, out, fixes, says, "third")
    (fixes / RELEASE).rename(fixes / "verifiers-2.0")
    says = f"fixes/{RELEASE}: no patches for this release, expected one of verifiers-2.0"
    assert_refused(wheel, out, fixes, says)


def test_the_script_says_in_one_line_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["--wheel", str(tmp_path / "none.whl"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["fixes.py", *given])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(ROOT / "lab" / "releases" / "fixes.py"), run_name="__main__")
    assert caught.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "expected a wheel" in line


def test_a_release_that_cannot_be_run_is_said_to_be_so(tmp_path: Path) -> None:
    broken = PAIRS[0].broken
    rest = [each for each in read_checks() if not each.of(broken)]
    write_checks([*rest, *checks_of(broken, "no index")], tmp_path / "checks.csv")
    found = read_checks(tmp_path / "checks.csv")
    assert missing(found) == [
        f"{PAIRS[0].source}: {PAIRS[0].segment} not run in trl {broken.column}, expected that it deviates"
    ]
    assert "not run" in checks_text(found)
