"""The command line: `rlvr-debug`, a thin cover of what the scripts call too."""

from __future__ import annotations

import json
import os
import sys
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from rlvr_debug.config import ROOT, load_params
from rlvr_debug.errors import InputError, run_main
from rlvr_debug.files import read_json
from rlvr_debug.workspace import study_folder

__all__ = ["app", "main"]

app = typer.Typer(
    name="rlvr-debug",
    help="Why does my GRPO run not learn? Causes, found by experiment.",
    epilog="Exit status: 0 done; 1 a study's job failed; 2 bad input, in one line; 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_SECONDS = 2.0  # between two looks at a study
Overlay = Annotated[
    Path | None, typer.Option(help="A study's parameters, merged over params.yaml.")
]
Cores = Annotated[str | None, typer.Option(help="How many, or all; without, as the profile says.")]
Profile = Annotated[
    str | None, typer.Option(help="default, gpu, slurm, or the path of one of your own.")
]
Every = Annotated[bool, typer.Option("--all", help="Every phase, whatever one finds.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="All that Snakemake says.")]


def main() -> None:
    run_main(app)


@contextmanager
def _progress(what: str, verbose: bool) -> Iterator[Any]:
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


def _tenths(what: str) -> Any:
    said = [-1]

    def steps(done: int, of: int) -> None:
        tenth = 10 * done // of if of else 10
        if tenth > said[0]:
            said[0] = tenth
            print(f"{what}: {done} of {of} jobs", file=sys.stderr, flush=True)

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


@app.command(epilog="Example: rlvr-debug run --overlay studies/healthy.yaml --cores 2")
def run(
    overlay: Overlay = None,
    cores: Cores = None,
    profile: Profile = None,
    every_phase: Every = False,
    verbose: Verbose = False,
) -> None:
    """Run the study, or what is not done of it, and say what it found."""
    results = _run(overlay, cores, profile, every_phase, verbose)
    _say_verdicts(results)
    print(results / "report.html")


def _say_verdicts(results: Path) -> None:
    import pandas as pd

    table = pd.read_csv(results / "tables" / "verdicts.csv", keep_default_na=False)
    shown = Table(box=None, pad_edge=False)
    for column in ("hypothesis", "status", "confidence", "effect"):
        shown.add_column(column, justify="right" if column == "effect" else "left")
    for row in table.to_dict("records"):
        effect = row["effect"] if row["effect"] == "" else f"{float(row['effect']):+.3f}"
        shown.add_row(row["hypothesis"], row["status"], row["confidence"], effect)
    Console().print(shown)


@app.command(epilog="Example: rlvr-debug plan --overlay studies/qwen2.5-7b.yaml")
def plan(overlay: Overlay = None, cores: str = "all", every_phase: Every = False) -> None:
    """Say what the study will run and cost, before anything runs."""
    from rlvr_debug.reporting.plan import plan as planned

    print(planned(overlay, cores, every_phase))


@app.command(epilog="Example: rlvr-debug probe --json")
def probe(
    overlay: Overlay = None, cores: Cores = None, verbose: Verbose = False, as_json: AsJson = False
) -> None:
    """Check the components of the case's trainer before its first step: a minute, without training."""
    from rlvr_debug.probes.base import Measurement, readable

    found = read_json(
        _run(overlay, cores, None, False, verbose, "results/probes.json") / "probes.json"
    )
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print("\n".join(readable(Measurement(name, **each)) for name, each in found.items()))


@app.command(epilog="Example: rlvr-debug status --watch")
def status(
    overlay: Overlay = None,
    watch: Annotated[bool, typer.Option(help="Until the study is at work no more.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say which trainings are done and under way, their reward, and the time that is left."""
    from rlvr_debug.reporting.plan import study_rates
    from rlvr_debug.reporting.status import StudyStatus, study_status

    params, folder = _study(overlay)
    rates = study_rates(params, overlay)

    def look() -> StudyStatus:
        return study_status(params, folder, rates)

    found = look()
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
        return
    if not (watch and sys.stdout.isatty()):
        Console().print(_status_view(found))
        return
    with Live(_status_view(found), refresh_per_second=1) as live:
        while found.at_work:
            time.sleep(_SECONDS)
            found = look()
            live.update(_status_view(found))


def _status_view(found: Any) -> Group:
    counts = ", ".join(f"{count} {state}" for state, count in sorted(found.count().items()))
    head = f"study {found.study}: {'at work' if found.at_work else 'not at work'}; {counts}"
    left = f"about {found.seconds_left / 60:.0f} processor minutes left, at what its runs took"
    table = Table(box=None, pad_edge=False)
    for column in ("environment", "arm", "seed", "state", "step", "reward"):
        table.add_column(
            column, justify="right" if column in ("seed", "step", "reward") else "left"
        )
    for one in found.runs:
        reward = "" if one.reward is None else f"{one.reward:.3f}"
        step = f"{one.step}/{one.steps}"
        table.add_row(one.environment, one.arm, str(one.seed), one.state, step, reward)
    return Group(head, left if found.seconds_left else "nothing is left to train", table)


@app.command(epilog="Example: rlvr-debug report --open")
def report(
    overlay: Overlay = None,
    opened: Annotated[bool, typer.Option("--open", help="In a browser.")] = False,
) -> None:
    """Say where the report of a finished study is."""
    params, folder = _study(overlay)
    file = folder / "results" / "report.html"
    if not file.is_file():
        given = f" --overlay {overlay}" if overlay else ""
        raise InputError(
            f"{file}: study {params['study']} has no report yet (rlvr-debug run{given})"
        )
    print(file)
    if opened:
        webbrowser.open(file.resolve().as_uri())


@app.command(epilog="Example: rlvr-debug compare HEAD~5")
def compare(
    rev: Annotated[str, typer.Argument(help="A git revision of the default study.")],
    rev2: Annotated[str | None, typer.Argument(help="Another; without, the working tree.")] = None,
    out: Annotated[Path, typer.Option(help="For both revisions' curves, an SVG.")] = ROOT
    / "results"
    / "compare.svg",
) -> None:
    """Say what differs between two revisions' verdicts, metrics and parameters, as Markdown."""
    from rlvr_debug.reporting.compare import compare as compared

    print(compared(rev, rev2, out))


@app.command(epilog="Example: rlvr-debug new-hypothesis learning-rate")
def new_hypothesis(
    slug: Annotated[str, typer.Argument(help="Its name, words with hyphens between them.")],
    kind: Annotated[str, typer.Option(help="cause or localiser.")] = "cause",
) -> None:
    """Write the file of a new hypothesis, to be filled in."""
    from rlvr_debug.hypotheses.template import write_hypothesis

    if kind not in ("cause", "localiser"):
        raise InputError(f"--kind: found '{kind}', expected cause or localiser")
    print(write_hypothesis(slug, kind))


@app.command(epilog="Example: rlvr-debug diagnose outputs/checkpoint-100 --overlay-out mine.yaml")
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
    """Say what the logs of a run of yours speak for, and what the cheapest next experiment is."""
    from rlvr_debug.diagnose.rank import diagnose as diagnosed
    from rlvr_debug.diagnose.rank import write_study
    from rlvr_debug.diagnose.report import diagnosis_json, diagnosis_text

    if trainer not in ("trl", "command"):
        raise InputError(f"--trainer: found '{trainer}', expected trl or command")
    found = diagnosed(path, gpus, trainer)
    if overlay_out:
        write_study(found, limit, trainer, overlay_out)
    print(json.dumps(diagnosis_json(found), indent=2) if as_json else diagnosis_text(found, limit))


if __name__ == "__main__":
    main()
