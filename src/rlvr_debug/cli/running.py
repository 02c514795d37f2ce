"""Commands that run a study, or one step of it: run, check-case, check-program."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlvr_debug.cli import shared
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json

if TYPE_CHECKING:
    from rich.table import Table

    from rlvr_debug.study.running import Steps

Profile = Annotated[str | None, typer.Option(help="default, gpu, slurm, or the path of your own.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print all of Snakemake's output.")]
PassedOn = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- WORDS]",
        help="Words after -- go to Snakemake: files to make, options. It then prints its own output.",
        show_default=False,
    ),
]


@shared.command(
    "run",
    "run --overlay studies/healthy.yaml --cores 2",
    "run --hypothesis kl-penalty",
    "run --profile slurm --verbose",
    "run -- results/metrics.json -n",
)
def run(
    passed_on: PassedOn = None,
    overlay: shared.Overlay = None,
    hypothesis: shared.Hypotheses = None,
    cores: shared.Cores = None,
    profile: Profile = None,
    every_phase: shared.Every = False,
    verbose: Verbose = False,
) -> None:
    """Run the study and print its verdicts.

    Only jobs that are not done run. Ctrl-C stops them; the same command resumes.
    """
    if passed_on and "--" not in sys.argv:
        raise InputError(
            f"run: unknown argument {passed_on[0]!r}; name a study by --overlay, and put Snakemake's arguments after --"
        )
    overlay = shared.narrowed(overlay, hypothesis)
    speaks = verbose or bool(passed_on)
    results = _run(overlay, cores, profile, every_phase, speaks, passed_on or ())
    if not passed_on:
        shared.console().print(_verdicts(results))
        from rlvr_debug.by_verifiers import agreement
        from rlvr_debug.report.committed import beside_committed

        for line in (
            *agreement(results),
            *beside_committed(results.parent, overlay is not None),
        ):
            print(line)
        print(os.path.relpath(results / "report.html"))


@shared.command("check-case", "check-case --overlay mine.yaml --json > found.json")
def check_case(
    overlay: shared.Overlay = None,
    cores: shared.Cores = None,
    verbose: Verbose = False,
    as_json: shared.AsJson = False,
) -> None:
    """Compute the first steps of the case's trainer again.

    It takes a minute. A deviation is a finding: the exit status is 0.
    """
    results = _run(overlay, cores, None, False, verbose, ["results/check.json"])
    found = read_json(results / "check.json")
    from rlvr_debug.replay.answer import answer_text

    shared.print_answer(found if as_json else answer_text(found))


@shared.command("check-program --overlay studies/command.yaml")
def check_program(
    overlay: Annotated[
        Path, typer.Option(help="Parameters of a study with trainer trl or command.")
    ],
) -> None:
    """Try a trainer of your own for one step.

    It checks what the trainer writes, before any study.
    """
    shared.home()
    from rlvr_debug.study.single import check_program as checked

    found = checked(overlay)
    known = sorted({key for line in found.lines for key in line})
    print(f"one step in {found.seconds:.1f} s: metrics.jsonl and weights are valid")
    print(f"rollouts.jsonl: {len(found.rollouts)} rollouts with {', '.join(known) or 'nothing'}")


def _run(
    overlay: Path | None,
    cores: str | None,
    profile: str | None,
    every_phase: bool,
    verbose: bool,
    passed_on: Sequence[str] = (),
) -> Path:
    """Run the study and return its results, or exit with status 1."""
    params, folder = shared.study_of(overlay)
    from rlvr_debug.replay.answer import first_answer
    from rlvr_debug.study.running import run_study

    with _progress(f"study {params.study}", verbose) as (steps, say):

        def checked(file: Path) -> None:
            say(first_answer(read_json(file)))

        # who asks Snakemake for a file has no answer to wait for
        if run_study(
            overlay, cores, profile, every_phase, passed_on, steps, None if passed_on else checked
        ):
            raise typer.Exit(1)
    return folder / "results"


@contextmanager
def _progress(what: str, verbose: bool) -> Iterator[tuple[Steps | None, Callable[[str], None]]]:
    """Show a bar on a terminal; a line for each tenth elsewhere; nothing where Snakemake speaks itself.

    Yield what takes how many of how many jobs are done, and what says a line beside it.
    """
    if verbose:
        yield None, _say
    elif sys.stderr.isatty():
        from rich import progress as rich
        from rich.console import Console

        counted = (rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeElapsedColumn())
        columns = (rich.TextColumn(what), *counted)
        with rich.Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(what, total=None)

            def say(line: str) -> None:
                bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

            yield (
                _why_more(what, say, lambda done, of: bar.update(task, completed=done, total=of)),
                say,
            )
    else:
        yield _why_more(what, _say, _tenths(what)), _say


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _why_more(what: str, say: Callable[[str], None], show: Steps) -> Steps:
    """Return `show`, before which it is said why there are more jobs than before."""
    known = 0

    def steps(done: int, of: int) -> None:
        nonlocal known
        if 0 < known < of:
            say(f"{what}: the results so far call for {of - known} more jobs")
        known = of
        show(done, of)

    return steps


def _tenths(what: str) -> Steps:
    said = -1

    def steps(done: int, of: int) -> None:
        nonlocal said
        tenth = 10 * done // of if of else 10
        if tenth > said:
            said = tenth
            how_far = f"{done} of {of} jobs" if of else "nothing to do"
            _say(f"{what}: {how_far}")

    return steps


def _verdicts(results: Path) -> Table:
    import csv

    from rlvr_debug.verdicts.rule import in_words

    shown = shared.table("hypothesis", "status", "confidence", effect="right")
    with (results / "tables" / "verdicts.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            effect = f"{float(row['effect']):+.3f}" if row["effect"] else ""
            status = "not tested" if row["status"] == "pending" else in_words(row["status"])
            shown.add_row(row["hypothesis"], status, row["confidence"], effect)
    return shown
