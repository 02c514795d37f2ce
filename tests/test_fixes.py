"""The applier of patches, on small releases: all or nothing, and one line for what does not fit."""

from __future__ import annotations

import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.trainers.verifiers.fixes import apply_fixes

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
    assert_refused(empty, out, fixes, f"{empty}: 0 folders *.dist-info, expected a wheel's one")
    assert_refused(wheel, wheel, fixes, f"{wheel}: exists, expected a folder to be made")


def test_an_unknown_fix_or_release_is_refused(wheel: Path, fixes: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    says = f"fixes/{RELEASE}/third.patch: no such file, expected one of first, second"
    assert_refused(wheel, out, fixes, says, "third")
    (fixes / RELEASE).rename(fixes / "verifiers-2.0")
    says = f"fixes/{RELEASE}: no patches, expected a release of verifiers-2.0"
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
