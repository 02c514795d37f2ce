"""Patch a copy of a release of verifiers: fixes/<release>/*.patch, all of them or some.

Run it as `python -m lab.releases.fixes --wheel FILE --out patched`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.processes import run_main

__all__ = ["apply_fixes", "fix_names"]

_FIXES = ROOT / "fixes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--wheel", type=Path)
    source.add_argument("--unpacked", type=Path, help="a folder that holds the package")
    parser.add_argument("--out", type=Path, required=True, help="a folder to be made")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    args = parser.parse_args()
    applied = apply_fixes(args.wheel or args.unpacked, args.out, args.only)
    print(f"{args.out}: {', '.join(applied)}")


def fix_names(release: str, fixes: Path = _FIXES) -> list[str]:
    """Return the fixes of a release such as verifiers-0.1.3. Raise InputError where it has none."""
    names = sorted(file.stem for file in (fixes / release).glob("*.patch"))
    if not names:
        known = ", ".join(sorted({f.parent.name for f in fixes.glob("*/*.patch")})) or "none"
        raise InputError(f"fixes/{release}: no patches, expected a release of {known}")
    return names


def apply_fixes(
    source: Path, out: Path, only: Sequence[str] = (), fixes: Path = _FIXES
) -> list[str]:
    """Copy a release to the folder `out`, patch it, and return the names of the fixes.

    source: a wheel, or a folder that holds an unpacked or installed one. only: these fixes, else all.
    Raise InputError, and leave nothing behind, for a source that is neither, an `out` that exists, an
    unknown name, and a patch that does not apply.
    """
    if out.exists():
        raise InputError(f"{out}: exists, expected a folder to be made")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        copy = Path(scratch) / out.name
        if source.is_dir():
            _copy(source, copy)
        else:
            _unpack(source, copy)
        release = _release(copy, source)
        known = fix_names(release, fixes)
        for name in only:
            if name not in known:
                raise InputError(
                    f"fixes/{release}/{name}.patch: no such file, expected one of {', '.join(known)}"
                )
        chosen = [name for name in known if not only or name in only]
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
        raise InputError(f"{source}: {len(found)} folders *.dist-info, expected a wheel's one")
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
        raise InputError("git: no such program, expected it to apply patches with") from None
    if done.returncode:
        reason = done.stderr.strip().splitlines()[0].removeprefix("error: ")
        place = f"fixes/{patch.parent.name}/{patch.name}"
        raise InputError(f"{place}: {reason}, expected the release that it is for, unpatched")


if __name__ == "__main__":
    run_main(main)
