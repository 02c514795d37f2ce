"""What is not needed any more of a study: runs that it no longer names, a lock that was left, or all of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from rlvr_debug.checkout import ROOT
from rlvr_debug.processes import git, output_of
from rlvr_debug.study.folder import WRITTEN, hold, nobody_works_in, study_folder
from rlvr_debug.study.model import Params
from rlvr_debug.study.resolved import resolve
from rlvr_debug.study.snakemake import snakemake_command
from rlvr_debug.verdicts.looks import looks_after


def tidy(
    what: Literal["prune", "unlock", "clean"],
    params: Params,
    overlay: Path | None,
    dry_run: bool = False,
    root: Path = ROOT,
) -> Iterator[str]:
    """Do it to the default study or to an overlay's, and yield a line for each thing done.

    Raises InputError while the study is at work; dry_run: of prune.
    """
    folder = study_folder(params, overlay, root)
    if not folder.is_dir():
        yield f"{folder}: no such study yet"
        return
    with hold(folder):
        nobody_works_in(folder)
        if what == "unlock":
            freed = unlock(folder, snakemake_command(folder, overlay))
            yield f"{folder}: {'unlocked' if freed else 'was not locked'}"
        elif what == "clean":
            # needs a git repository
            git("clean", "-fdxq", "--", *WRITTEN, folder=folder)
            yield f"{folder}: only what git tracks is left of {', '.join(WRITTEN)}"
        else:
            unnamed_paths = unnamed(params, folder)
            for path in unnamed_paths:
                if not dry_run:
                    _remove(path)
                yield f"{'would remove' if dry_run else 'removed'} {path.relative_to(root)}"
            if not unnamed_paths:
                yield f"{folder}: params.yaml names all that is there"


def _remove(path: Path) -> None:
    # what a link leads to may be anywhere
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def unlock(folder: Path, command: list[str]) -> bool:
    """Remove the lock that a killed Snakemake left, and return whether there was one.

    It is for whoever holds the study. command: snakemake_command's.
    """
    if not any((folder / ".snakemake" / "locks").glob("*")):
        return False
    nobody_works_in(folder)
    words = [*command, "--unlock", "--quiet", "all"]
    output_of(words, f"{folder}: its lock stays, snakemake --unlock")
    return True


def unnamed(params: Params, folder: Path) -> list[Path]:
    """Return run folders and logs of arms and seeds that the study does not have (any more).

    Of an arm without any seed left, it is the whole folder. Where the last look is there, runs that the looks did not
    choose too, and looks after the last one.
    """
    study = resolve(params, ROOT)
    last = study.last_look(folder / "results")
    kept = study.runs if last.more else study.chosen(last)
    stale = [] if last.more else looks_after(last, folder / "results")
    trained = [tuple(run.name.split("/")) for run in kept]
    needed = {key[:depth] for key in trained for depth in (1, 2, 3)}
    places = [folder / "results" / "runs"]
    places += [folder / "logs" / rule for rule in ("train", "evaluate_run")]
    return [*stale, *(path for place in places for path in _outermost(place, (), needed))]


def _outermost(place: Path, above: tuple[str, ...], needed: set[tuple[str, ...]]) -> Iterator[Path]:
    """Yield what of environment/arm/seed under `place` is not needed. above: the names from there to here."""
    for path in sorted(place.glob("*")):
        key = (*above, path.name.removesuffix(".log"))
        if key not in needed:
            yield path
        elif len(key) < 3:
            yield from _outermost(path, key, needed)
