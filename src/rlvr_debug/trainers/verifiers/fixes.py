"""Releases of verifiers and their fixes, fixes/<release>/*.patch; faults.yaml there says which fault each takes away."""

import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml

_FIXES = ROOT / "fixes"


def releases(fixes: Path = _FIXES) -> list[str]:
    """Return the releases that have fixes, such as verifiers-0.1.3."""
    return sorted({file.parent.name for file in fixes.glob("*/*.patch")})


def faults_of_release(release: str) -> dict[str, str]:
    """Return by fix the fault that the release has without it, of the fixes that mend one."""
    return {fix: fault for fix, fault in _faults_by_fix(release).items() if fault}


def fixes_without(release: str, faults: Collection[str]) -> list[str]:
    """Return the fixes of a run: those of all faults but these, and with at most one of them left, those of no fault too."""
    mended = _faults_by_fix(release)
    own = set(filter(None, mended.values()))
    rest = len(own & set(faults)) < min(2, len(own))
    return [fix for fix, fault in mended.items() if (fault not in faults if fault else rest)]


def _faults_by_fix(release: str) -> dict[str, str | None]:
    file = _FIXES / release / "faults.yaml"
    found: dict[str, str | None] = read_yaml(file) if file.is_file() else {}  # it has no fixes
    return found


def fix_names(release: str, fixes: Path = _FIXES) -> list[str]:
    """Return the fixes of a release such as verifiers-0.1.3. Raise InputError where it has none."""
    names = sorted(file.stem for file in (fixes / release).glob("*.patch"))
    if not names:
        known = ", ".join(releases(fixes)) or "none"
        raise InputError(f"fixes/{release}: no patches for this release, expected one of {known}")
    return names


def apply_fixes(
    source: Path, out: Path, only: Sequence[str] | None = None, fixes: Path = _FIXES
) -> list[str]:
    """Copy a release, a wheel or a folder with one, to `out`, patch it, and return the names of the fixes: all, or `only` these."""
    if out.exists():
        raise InputError(f"{out}: exists; give a new folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        copy = Path(scratch) / out.name
        if source.is_dir():
            _copy(source, copy)
        else:
            _unpack(source, copy)
        release = _release(copy, source)
        known = fix_names(release, fixes)
        for name in only or ():
            if name not in known:
                raise InputError(
                    f"fixes/{release}/{name}.patch: no such file, expected one of {', '.join(known)}"
                )
        chosen = [name for name in known if only is None or name in only]
        for name in chosen:
            _apply(fixes / release / f"{name}.patch", copy)
        copy.rename(out)
    return chosen


def _unpack(wheel: Path, copy: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(copy)
    except (OSError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{wheel}: {reason}, expected a wheel") from None


def _copy(folder: Path, copy: Path) -> None:
    """Copy the package and its metadata, and nothing else that is installed there."""
    for metadata in folder.glob("verifiers-*.dist-info"):
        shutil.copytree(metadata, copy / metadata.name)
    if (folder / "verifiers").is_dir():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(folder / "verifiers", copy / "verifiers", ignore=ignored)


def _release(copy: Path, source: Path) -> str:
    found = [path.name.removesuffix(".dist-info") for path in copy.glob("*.dist-info")]
    if len(found) != 1:
        raise InputError(f"{source}: found {len(found)} folders *.dist-info, expected exactly one")
    return found[0]


def _apply(patch: Path, folder: Path) -> None:
    # inside a repository git takes paths from its root, and skips what it does not find there
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent.resolve())}
    command = ["git", "apply", str(patch.resolve())]
    try:
        done = subprocess.run(
            command, cwd=folder, env=alone, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise InputError("git: not found; install it to apply the patches") from None
    if done.returncode:
        reason = done.stderr.strip().splitlines()[0].removeprefix("error: ")
        place = f"fixes/{patch.parent.name}/{patch.name}"
        raise InputError(f"{place}: {reason}, expected {patch.parent.name}, unpatched")
