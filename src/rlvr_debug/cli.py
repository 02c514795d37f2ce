"""The command line: `rlvr-debug`, a thin cover of what the scripts call too."""

from __future__ import annotations

import json
import os
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from rlvr_debug.config import ROOT, load_params
from rlvr_debug.errors import InputError, run_main
from rlvr_debug.files import read_json
from rlvr_debug.workspace import snakemake_command, study_folder

if TYPE_CHECKING:
    from rlvr_debug.reporting.status import StudyStatus

__all__ = ["app", "main"]

app = typer.Typer(
    name="rlvr-debug",
    help="My GRPO run does not learn: why? Causes, found by experiment.",
    epilog="Exit status: 0 done; 1 a job of the study failed; 2 bad input, in one line on stderr; "
    "130 interrupted. docs/cli.md has an example of each command with what it prints.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_SECONDS = 2.0  # between two looks at a study
_WIDE = 200  # characters of a table that goes to a file or another program
_STYLES = {"training": "bold", "evaluating": "bold", "failed": "bold red", "waiting": "dim"}

Overlay = Annotated[
    Path | None, typer.Option(help="A study's parameters, merged over params.yaml.")
]
Cores = Annotated[str | None, typer.Option(help="How many, or all; without, as the profile says.")]
Profile = Annotated[
    str | None, typer.Option(help="default, gpu, slurm, or the path of one of your own.")
]
Every = Annotated[bool, typer.Option("--all", help="Every phase, whatever one finds.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs: all of it, as JSON.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="All that Snakemake says.")]


def main() -> None:
    run_main(_main)


def _main() -> None:
    try:
        app()
    except SystemExit as end:
        # Typer's own way to end: of Ctrl-C it says nothing
        if end.code == 130:
            raise KeyboardInterrupt from None
        if end.code:
            raise


def _examples(*lines: str) -> str:
    # \b: lines stay as they are
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


@app.callback(invoke_without_command=True)
def _options(
    shown: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if shown:
        print(f"rlvr-debug {version('rlvr-debug')}")
        raise typer.Exit


def _console() -> Console:
    """No markup: what it prints comes from files. Off a terminal, without control codes, lines are not cut."""
    width = None if sys.stdout.isatty() else _WIDE
    return Console(width=width, markup=False, highlight=False, emoji=False)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


# --- running


@contextmanager
def _progress(what: str, verbose: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal; a line for each tenth elsewhere; nothing where Snakemake speaks itself."""
    if verbose:
        yield None
    elif sys.stderr.isatty():
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, of: bar.update(task, completed=done, total=of)
    else:
        yield _tenths(what)


def _tenths(what: str) -> Callable[[int, int], None]:
    said = -1

    def steps(done: int, of: int) -> None:
        nonlocal said
        tenth = 10 * done // of if of else 10
        if tenth > said:
            said = tenth
            how_far = f"{done} of {of} jobs" if of else "nothing to do"
            print(f"{what}: {how_far}", file=sys.stderr, flush=True)

    return steps


def _study(overlay: Path | None) -> tuple[dict[str, Any], Path]:
    """Its params and folder."""
    params = load_params(Path(os.path.relpath(ROOT)) / "params.yaml", overlay)
    return params, study_folder(params, overlay)


def _run(
    overlay: Path | None,
    cores: str | None,
    profile: str | None,
    every_phase: bool,
    verbose: bool,
    *targets: str,
) -> Path:
    """Its results, or exit status 1."""
    from rlvr_debug.running import run_study

    params, folder = _study(overlay)
    with _progress(f"study {params['study']}", verbose) as steps:
        if run_study(overlay, cores, profile, every_phase, targets, steps):
            raise typer.Exit(1)
    return folder / "results"


@app.command(
    epilog=_examples(
        "rlvr-debug run",
        "rlvr-debug run --overlay studies/healthy.yaml --cores 2",
        "rlvr-debug run --profile slurm --verbose",
    )
)
def run(
    overlay: Overlay = None,
    cores: Cores = None,
    profile: Profile = None,
    every_phase: Every = False,
    verbose: Verbose = False,
) -> None:
    """Run the study, and say what it found.

    Only what is not done is run. Ctrl-C ends it; the same command takes it up again.
    """
    results = _run(overlay, cores, profile, every_phase, verbose)
    _console().print(_verdicts(results))
    print(os.path.relpath(results / "report.html"))


def _verdicts(results: Path) -> Table:
    import pandas as pd

    table = pd.read_csv(results / "tables" / "verdicts.csv", keep_default_na=False)
    shown = _table("hypothesis", "status", "confidence", effect="right")
    for row in table.to_dict("records"):
        effect = row["effect"] if row["effect"] == "" else f"{float(row['effect']):+.3f}"
        shown.add_row(row["hypothesis"], row["status"], row["confidence"], effect)
    return shown


def _table(*names: str, **sides: Any) -> Table:
    shown = Table(box=None, pad_edge=False)
    for name in (*names, *sides):
        shown.add_column(name, justify=sides.get(name, "left"))
    return shown


@app.command(
    epilog=_examples("rlvr-debug probe", "rlvr-debug probe --overlay mine.yaml --json > found.json")
)
def probe(
    overlay: Overlay = None, cores: Cores = None, verbose: Verbose = False, as_json: AsJson = False
) -> None:
    """Check the case's trainer, without training.

    A minute. What fails is a finding, and no failure: the exit status is 0.
    """
    from rlvr_debug.probes.base import Measurement, readable

    results = _run(overlay, cores, None, False, verbose, "results/probes.json")
    found = read_json(results / "probes.json")
    if as_json:
        _print_json(found)
    else:
        print("\n".join(readable(Measurement(**each)) for each in found.values()))


# --- looking


@app.command(
    epilog=_examples(
        "rlvr-debug plan",
        "rlvr-debug plan --overlay studies/qwen2.5-7b.yaml",
        "rlvr-debug plan --json | jq .left.seconds",
    )
)
def plan(
    overlay: Overlay = None,
    cores: Annotated[str, typer.Option(help="That the time is for: how many, or all.")] = "all",
    every_phase: Every = False,
    as_json: AsJson = False,
) -> None:
    """Say what the study will run and cost.

    Nothing runs.
    """
    from rlvr_debug.reporting.plan import plan as planned
    from rlvr_debug.reporting.plan import plan_text

    found = planned(overlay, cores, every_phase)
    if as_json:
        _print_json(found.to_json())
    else:
        print(plan_text(found))


@app.command(
    epilog=_examples(
        "rlvr-debug status --watch",
        "rlvr-debug status --overlay studies/full.yaml --json | jq .seconds_left",
    )
)
def status(
    overlay: Overlay = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again until nobody runs the study any more.")
    ] = False,
    every_phase: Every = False,
    as_json: AsJson = False,
) -> None:
    """Say how far the study is, and how long to go.

    A line for each training, with the mean reward of its last five recorded steps. Those under way come first.
    """
    if watch and as_json:
        raise InputError("--watch: found with --json, expected one of the two")
    look = _looks(overlay, every_phase)
    found = look()
    if as_json:
        _print_json(found.to_json())
    elif not watch:
        _console().print(_status_view(found))
    elif sys.stdout.isatty():
        with Live(_status_view(found), console=_console(), refresh_per_second=1) as live:
            while found.at_work:
                time.sleep(_SECONDS)
                found = look()
                live.update(_status_view(found))
    else:
        _watch_in_lines(found, look)


def _looks(overlay: Path | None, every_phase: bool) -> Callable[[], StudyStatus]:
    from rlvr_debug.reporting.plan import study_rates
    from rlvr_debug.reporting.status import study_status, to_do_now

    params, folder = _study(overlay)
    if every_phase:
        params["phases"] = "all"
    rates = study_rates(params, overlay)
    to_do = to_do_now(snakemake_command(folder, overlay, every_phase))
    return lambda: study_status(params, folder, to_do, rates)


def _watch_in_lines(found: StudyStatus, look: Callable[[], StudyStatus]) -> None:
    """Off a terminal: one for each change of what is done or under way."""
    said = None
    while True:
        if found.count() != said:
            said = found.count()
            print("; ".join(_summary(found)), flush=True)
        if not found.at_work:
            return
        time.sleep(_SECONDS)
        found = look()


def _summary(found: StudyStatus) -> tuple[str, str]:
    counts = ", ".join(f"{count} {state}" for state, count in found.count().items())
    how = "at work" if found.at_work else "not at work"
    how += f", {found.at_a_time} at a time" if found.at_a_time else ""
    processor, wall = found.processor_seconds_left, found.seconds_left
    if processor is None:
        left = "how long to go is not known: no step was measured yet"
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


def _status_view(found: StudyStatus) -> RenderableType:
    from rlvr_debug.reporting.status import STATES

    table = _table("environment", "arm", seed="right", state="left", step="right", reward="right")
    for one in sorted(found.runs, key=lambda one: STATES.index(one.state)):
        reward = "" if one.reward is None else f"{one.reward:.3f}"
        state = Text(one.state, _STYLES.get(one.state, ""))
        step = f"{one.step}/{one.steps}"
        table.add_row(one.environment, one.arm, str(one.seed), state, step, reward)
    return Group(*(Text(line) for line in _summary(found)), table)


@app.command(epilog=_examples("rlvr-debug report", "rlvr-debug report --open"))
def report(
    overlay: Overlay = None,
    opened: Annotated[bool, typer.Option("--open", help="In a browser.")] = False,
) -> None:
    """Say where the study's report is, or open it."""
    params, folder = _study(overlay)
    file = folder / "results" / "report.html"
    if not file.is_file():
        given = f" --overlay {overlay}" if overlay else ""
        raise InputError(
            f"{os.path.relpath(file)}: study {params['study']} has no report yet, expected that of a "
            f"finished study (rlvr-debug run{given})"
        )
    print(os.path.relpath(file))
    if opened and not webbrowser.open(file.resolve().as_uri()):
        raise InputError(f"{os.path.relpath(file)}: no browser was found, expected one")


@app.command(
    epilog=_examples(
        "rlvr-debug compare HEAD~5",
        "rlvr-debug compare v1 v2 --out curves.svg",
        "rlvr-debug compare HEAD --json | jq .verdicts",
    )
)
def compare(
    rev: Annotated[str, typer.Argument(help="A git revision.")],
    rev2: Annotated[str | None, typer.Argument(help="Another; without, the working tree.")] = None,
    out: Annotated[
        Path,
        typer.Option(
            help="For both revisions' curves, an SVG.", show_default="results/compare.svg"
        ),
    ] = ROOT / "results" / "compare.svg",
    as_json: AsJson = False,
) -> None:
    """Say what differs between two revisions.

    Of the default study: verdicts, metrics and parameters as Markdown, and both training curves in a file.
    """
    from rlvr_debug.reporting.compare import compare as compared

    found = compared(rev, rev2, out)
    if as_json:
        _print_json(found.to_json())
    else:
        print(found.text)


# --- writing


@app.command(
    epilog=_examples(
        "rlvr-debug new-hypothesis learning-rate",
        "rlvr-debug new-hypothesis longer-context --kind localiser",
    )
)
def new_hypothesis(
    slug: Annotated[str, typer.Argument(help="Its name, words with hyphens between them.")],
    kind: Annotated[str, typer.Option(help="cause or localiser.")] = "cause",
) -> None:
    """Write the file of a new hypothesis, to be filled in."""
    from rlvr_debug.hypotheses.template import write_hypothesis

    _one_of("kind", kind, "cause", "localiser")
    print(os.path.relpath(write_hypothesis(slug, kind)))


@app.command(
    epilog=_examples(
        "rlvr-debug diagnose outputs/checkpoint-100/trainer_state.json",
        "rlvr-debug diagnose outputs/my-run --gpus 8 --overlay-out mine.yaml",
        "rlvr-debug diagnose history.jsonl --json | jq '.ranked[].hypothesis'",
    )
)
def diagnose(
    path: Annotated[Path, typer.Argument(help="A log file, or the folder of one run.")],
    limit: Annotated[int, typer.Option(min=0, help="Hypotheses shown in full; 0: all.")] = 5,
    gpus: Annotated[int, typer.Option(min=0, help="That the run had; 0: none.")] = 1,
    overlay_out: Annotated[
        Path | None, typer.Option(help="Write the study of what was ranked here.")
    ] = None,
    trainer: Annotated[str, typer.Option(help="Of that study: trl or command.")] = "trl",
    as_json: AsJson = False,
) -> None:
    """Read the log of a run that you already have.

    Says which hypotheses it speaks for, and what the cheapest next experiment is. Nothing runs.
    """
    from rlvr_debug.diagnose.rank import diagnose as diagnosed
    from rlvr_debug.diagnose.rank import write_study
    from rlvr_debug.diagnose.report import diagnosis_json, diagnosis_text

    _one_of("trainer", trainer, "trl", "command")
    found = diagnosed(path, gpus, trainer)
    if overlay_out:
        write_study(found, limit, trainer, overlay_out)
    if as_json:
        _print_json(diagnosis_json(found))
    else:
        print(diagnosis_text(found, limit))


def _one_of(option: str, found: str, *known: str) -> None:
    if found not in known:
        raise InputError(f"--{option}: found '{found}', expected {' or '.join(known)}")


if __name__ == "__main__":
    main()
