"""Commands that write files, or take away what is not needed any more: init, new-hypothesis, diagnose, track, prune, unlock, clean."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from rlvr_debug.checkout import checkout
from rlvr_debug.cli import shared
from rlvr_debug.errors import InputError
from rlvr_debug.files import taken, writable


@shared.command("init my-study")
def init(
    folder: Annotated[Path, typer.Argument(help="A folder that is empty, or a new one.")] = Path(
        "."
    ),
) -> None:
    """Write what studies need: parameters, rules, the tiny model, rows, the code. Only from an installed wheel."""
    from rlvr_debug.checkout import lay_out

    lay_out(folder)
    print(f"{folder}: params.yaml is the shipped study; `rlvr-debug run` in this folder runs it")


@shared.command(
    "new-hypothesis learning-rate",
    "new-hypothesis longer-context --kind localiser",
)
def new_hypothesis(
    slug: Annotated[str, typer.Argument(help="Its name: words joined by hyphens.")],
    kind: Annotated[str, typer.Option(help="cause or localiser.")] = "cause",
) -> None:
    """Write the file of a new hypothesis, to be filled in."""
    shared.home()
    from rlvr_debug.causes import write_hypothesis

    shared.one_of("kind", kind, "cause", "localiser")
    print(os.path.relpath(write_hypothesis(slug, kind)))
    print(f"next: fill in its TODOs (docs/extend.md), then rlvr-debug plan --hypothesis {slug}")


@shared.command(
    "diagnose outputs/checkpoint-100/trainer_state.json",
    "diagnose outputs/my-run --gpus 8 --overlay-out mine.yaml",
    "diagnose history.jsonl --json | jq '.ranked[].hypothesis'",
    "diagnose outputs/good outputs/bad --html apart.html",
    "diagnose - < train.log",
)
def diagnose(
    path: Annotated[
        Path, typer.Argument(help="A log file, the folder of one run, or - for standard input.")
    ],
    other: Annotated[
        Path | None, typer.Argument(help="Another run's log, to compare with the first.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print all that was checked, not one screen.")
    ] = False,
    limit: Annotated[
        int, typer.Option(min=0, help="Causes that -v explains and the study tests; 0: all.")
    ] = 5,
    gpus: Annotated[
        int, typer.Option(min=0, help="GPUs that the run used, to estimate costs; 0: none.")
    ] = 1,
    overlay_out: Annotated[
        Path | None, typer.Option(help="Write a study of the ranked causes to this file.")
    ] = None,
    trainer: Annotated[str, typer.Option(help="That study's trainer: trl or command.")] = "trl",
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page of the findings: curves with marks, and rollouts."),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(help="The run to read, if a file has several; twice to compare two."),
    ] = None,
    as_json: shared.AsJson = False,
) -> None:
    """Read the log of a run that you already have.

    Prints the hypotheses that it supports, and the cheapest next experiment. Nothing runs.
    """
    from rlvr_debug.diagnosis.rank import diagnose as diagnosed
    from rlvr_debug.diagnosis.report import diagnosis_json, diagnosis_text

    if len(run or ()) > 2:
        raise InputError(f"--run: found {len(run or ())} runs, expected one, or two to compare")
    if run and len(run) == 2:
        other = other or path
    if trainer != "trl":
        from rlvr_debug.study.diagnosed import trainers_offered

        shared.one_of("trainer (the study's, not the log's)", trainer, *trainers_offered())
    if other is not None and overlay_out:
        raise InputError("--overlay-out: found two logs; give only the one that the study is for")
    for option, file in (("--html", html), ("--overlay-out", overlay_out)):
        if file is not None:
            writable(file, option)
    if overlay_out and overlay_out.exists():
        raise taken(overlay_out)
    if str(path) == "-" and sys.stdin.isatty():
        print("Paste the log, then press Ctrl-D.", file=sys.stderr)
    first, *_, second = 2 * (run or [""])
    found = diagnosed(path, gpus, first)
    if other is not None:
        from rlvr_debug.diagnosis.compare import compare, comparison_json, comparison_text

        both = compare(found, diagnosed(other, gpus, second))
        if html is not None:
            from rlvr_debug.report.diagnosis_page import comparison_html

            shared.write_page(html, comparison_html(both))
        shared.print_answer(comparison_json(both) if as_json else comparison_text(both))
        return
    answer = diagnosis_json(found) if as_json else diagnosis_text(found, limit, verbose)
    if html is not None:
        from rlvr_debug.report.diagnosis_page import diagnosis_html

        shared.write_page(html, diagnosis_html(found))
    if not (overlay_out and found.ranked):
        shared.print_answer(answer)
    if overlay_out:
        # a log is read without the study
        from rlvr_debug.study.diagnosed import write_study

        print(write_study(found, limit, trainer, overlay_out), file=sys.stderr)
        print(
            f"next: fill in what the file asks for, then rlvr-debug plan --overlay {overlay_out}",
            file=sys.stderr,
        )
        shared.print_answer(answer)


@shared.command("track --overlay studies/full.yaml --all")
def track(
    overlay: Annotated[Path, typer.Option(help="The study's parameters.")],
    every_phase: shared.Every = False,
) -> None:
    """Put an overlay's study under DVC.

    It writes a stage to studies/<name>/, like the default study's.
    """
    root = shared.home()
    from rlvr_debug.study.tracking import track as tracked

    folder = os.path.relpath(tracked(overlay, every_phase, root))
    print(f"{folder}: once the study is run, `dvc repro {folder}/dvc.yaml` and `git add {folder}`")


@shared.command("prune --dry-run")
def prune(
    overlay: shared.Overlay = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be removed.")
    ] = False,
) -> None:
    """Remove runs that the study no longer names.

    Their logs go with them.
    """
    _tidy("prune", overlay, dry_run)


@shared.command("unlock --overlay studies/full.yaml")
def unlock(overlay: shared.Overlay = None) -> None:
    """Remove the lock that a killed study left."""
    _tidy("unlock", overlay)


@shared.command("clean --overlay studies/full.yaml")
def clean(overlay: shared.Overlay = None) -> None:
    """Remove results and logs; what git tracks stays."""
    _tidy("clean", overlay)


def _tidy(
    what: Literal["prune", "unlock", "clean"], overlay: Path | None, dry_run: bool = False
) -> None:
    params, _ = shared.study_of(overlay)
    from rlvr_debug.study.running import tidy

    for line in tidy(what, params, overlay, dry_run, checkout()):
        print(line)
