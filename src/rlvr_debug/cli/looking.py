"""Commands that look at what there is: plan, status, report. They run nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated

import typer

from rlvr_debug.checkout import checkout
from rlvr_debug.cli import shared
from rlvr_debug.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rlvr_debug.study.status import RunStatus, StudyStatus

_SECONDS = 2.0  # between two looks at a study
_STYLES = {"training": "bold", "evaluating": "bold", "failed": "bold red", "waiting": "dim"}


@shared.command(
    "plan",
    "plan --overlay studies/qwen2.5-7b.yaml",
    "plan --json | jq .left.seconds",
)
def plan(
    overlay: shared.Overlay = None,
    hypothesis: shared.Hypotheses = None,
    cores: Annotated[
        str, typer.Option(help="Cores for which the time is estimated: a number, or all.")
    ] = "all",
    every_phase: shared.Every = False,
    as_json: shared.AsJson = False,
) -> None:
    """Print what a study will run and cost.

    Nothing runs; only --hypothesis writes a file.
    """
    shared.home()
    from rlvr_debug.study.plan import plan as planned
    from rlvr_debug.study.plan import plan_text

    found = planned(shared.narrowed(overlay, hypothesis), cores, every_phase)
    shared.print_answer(asdict(found) if as_json else plan_text(found))


@shared.command(
    "status --watch",
    "status --overlay studies/full.yaml --json | jq .seconds_left",
)
def status(
    overlay: shared.Overlay = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh until the study no longer runs.")
    ] = False,
    every_phase: shared.Every = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="A line for each training, later ones too.")
    ] = False,
    as_json: shared.AsJson = False,
) -> None:
    """Print the study's progress and the time left.

    Trainings of an arm that are equally far share a line, with their mean reward of the last five recorded steps; running
    ones come first.
    """
    if watch and as_json:
        raise InputError("--watch: found with --json, expected one of the two")
    look = _looks(overlay, every_phase)
    if as_json:
        shared.print_answer(look().to_json())
    elif not watch:
        shared.console().print(_status_view(look(), verbose))
    elif sys.stdout.isatty():
        from rich.live import Live

        with Live(console=shared.console(), refresh_per_second=1) as live:
            for found in _watched(look):
                live.update(_status_view(found, verbose))
    else:
        said = None
        for found in _watched(look):
            # a line for each change of what is done or under way
            if found.count() != said:
                said = found.count()
                print("; ".join(_summary(found)), flush=True)


def _looks(overlay: Path | None, every_phase: bool) -> Callable[[], StudyStatus]:
    params, folder = shared.study_of(overlay, every_phase)
    from rlvr_debug.study.plan import study_rates
    from rlvr_debug.study.resolved import resolve
    from rlvr_debug.study.running import snakemake_command
    from rlvr_debug.study.status import study_status, to_do_now

    rates = study_rates(params, overlay)
    to_do = to_do_now(folder, snakemake_command(folder, overlay, every_phase))
    study = resolve(params, checkout())
    return lambda: study_status(study, folder, to_do, rates)


def _watched(look: Callable[[], StudyStatus]) -> Iterator[StudyStatus]:
    """Look again and again until nobody runs the study any more."""
    while (found := look()).at_work:
        yield found
        time.sleep(_SECONDS)
    yield found


def _summary(found: StudyStatus) -> tuple[str, str]:
    counts = ", ".join(f"{count} {state}" for state, count in found.count().items())
    counts = counts.replace(" later", " later, if needed")
    how = "running" if found.at_work else "not running"
    how += f", {found.at_a_time} at a time" if found.at_a_time else ""
    processor, wall = found.processor_seconds_left, found.seconds_left
    if processor is None:
        left = "the time left is not known: no step was measured yet"
    elif not processor:
        left = "nothing is left to train or evaluate"
    elif wall is None:
        left = f"about {_duration(processor)} of one processor to go"
    else:
        left = f"about {_duration(wall)} to go, {_duration(processor)} of one processor"
    return f"study {found.study}: {how}: {counts}", left


def _duration(seconds: float) -> str:
    for unit, size, most in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 48)):
        if seconds < most * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def _seeds(runs: Sequence[RunStatus]) -> str:
    seeds = sorted(run.seed for run in runs)
    if len(seeds) > 1 and seeds == [*range(seeds[0], seeds[-1] + 1)]:
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def _status_view(found: StudyStatus, verbose: bool) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    shown = shared.table(
        "environment", "arm", seeds="right", state="left", step="right", reward="right"
    )
    for runs in found.lines(verbose):
        one, rewards = runs[0], [run.reward for run in runs if run.reward is not None]
        reward = f"{mean(rewards):.3f}" if rewards else ""
        state = Text(one.state, _STYLES.get(one.state, ""))
        step = f"{one.step}/{one.steps}"
        shown.add_row(one.environment, one.arm, _seeds(runs), state, step, reward)
    lines = [*_summary(found)]
    for its in ("testing", "tested", "pending"):
        if slugs := [slug for slug, state in found.hypotheses.items() if state == its]:
            lines.append(f"{its}: {', '.join(slugs)}")
    return Group(*(Text(line) for line in lines), shown)


@shared.command("report", "report --open")
def report(
    overlay: shared.Overlay = None,
    opened: Annotated[bool, typer.Option("--open", help="In a browser.")] = False,
) -> None:
    """Print where the report is, or open it."""
    params, folder = shared.study_of(overlay)
    file = folder / "results" / "report.html"
    if not file.is_file():
        given = f" --overlay {overlay}" if overlay else ""
        raise InputError(
            f"{os.path.relpath(file)}: study {params.study} has no report yet; finish it first "
            f"(rlvr-debug run{given})"
        )
    print(os.path.relpath(file))
    import webbrowser

    if opened and not webbrowser.open(file.resolve().as_uri()):
        raise InputError(f"{os.path.relpath(file)}: no browser was found; open the file yourself")
