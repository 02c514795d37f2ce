"""The command that checks a trainer: a user's script, or a record of any program."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rlvr_debug.cli.app import AsJson, command, need_extra, print_answer
from rlvr_debug.errors import InputError
from rlvr_debug.files import writable, write_json

# what no script's name ends with
_LOGS = (
    *(".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".wandb"),
    *(".log", ".out", ".txt", ".ipynb"),
)

Script = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SCRIPT ARGS...]",
        help="A script that trains with TRL's GRPOTrainer, and its own arguments. It is not changed.",
        show_default=False,
    ),
]


def _by_all(inner: Callable[..., None]) -> Callable[..., None]:
    """Return the command for one process, or for those that a launcher started: the first one answers for all."""

    @functools.wraps(inner)
    def outer(**given: Any) -> None:
        from rlvr_debug.recorders.trl.launched import as_one, launched

        with as_one(launched() if given["script"] else None):
            inner(**given)

    return outer


@command(
    "check train.py",
    "check --steps 5 --json train.py > found.json",
    "check --record runs/record",
    "check --baseline before.json --annotate train.py",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
)
@_by_all
def check(
    script: Script = None,
    record: Annotated[
        Path | None, typer.Option(help="A folder that any program recorded its steps in.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Where the record of the script's steps is kept: a new folder."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=64, help="Optimizer steps.")] = 3,
    rewards: Annotated[
        bool,
        typer.Option("--rewards/--no-rewards", help="Whether reward functions are called again."),
    ] = True,
    html: Annotated[
        Path | None, typer.Option(help="A page of what was found, with the tokens that deviate.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="An earlier --json. Only what deviates now and did not in it, or otherwise, is status 3."
        ),
    ] = None,
    json_out: Annotated[
        Path | None, typer.Option(help="A file for what --json prints, beside what is printed.")
    ] = None,
    limit: Annotated[
        float,
        typer.Option(
            min=1, help="Of several processes: seconds in which one of them has to get on."
        ),
    ] = 600.0,
    annotate: Annotated[
        bool, typer.Option("--annotate", help="Also print GitHub's annotations of a change.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compute your trainer's first steps again.

    A few steps are recorded, each segment is computed by a reference, and the first that deviates is where a fault is.
    A script is run by this Python until GRPOTrainer.train has made the steps, and then ended; what it prints goes to
    stderr. Exit status 0: all agrees; 3: something deviates, with --baseline something that did not before, or
    otherwise; 2: it could not be run, or a segment could not be computed.
    """
    if bool(script) == (record is not None):
        raise InputError(
            "check: found both a script and --record, expected one of them"
            if script
            else "check: found no script, expected one that trains with GRPOTrainer, or --record with a folder"
        )
    if script and Path(script[0]).suffix.lower() in _LOGS:
        raise InputError(
            f"{script[0]}: found a log, expected a script; `rlvr-debug diagnose {script[0]}` reads it"
        )
    for option, file in (("html", html), ("json-out", json_out)):
        if file is not None:
            writable(file, f"--{option}")  # before minutes are spent
    if record is not None and save is not None:
        raise InputError("--save: found with --record, which is one, expected a script")
    need_extra("check", "torch", "safetensors", "transformers", *(["trl"] if script else []))
    from rlvr_debug.replay.answer import COULD_NOT, DEVIATED, answer_text, status_of
    from rlvr_debug.replay.baseline import against, against_text, annotation_lines, read_baseline

    before = {} if baseline is None else read_baseline(baseline)
    answer: Mapping[str, Any]
    if record is not None:
        from rlvr_debug.replay.store import check_folder

        answer = check_folder(record)
    else:
        from rlvr_debug.recorders.trl.checking import How, check_script
        from rlvr_debug.recorders.trl.launched import launched, launcher_words

        assert script is not None
        words = [script[0], *launcher_words(), *script[1:]]
        answer = check_script(words, How(steps, rewards, save, launched(), limit))
    found = against(answer, before)
    if baseline is not None:
        answer = {**answer, "against": found.to_json()}
    if html is not None:
        from rlvr_debug.report.check_page import write_page

        write_page(answer, html)
    if json_out is not None:
        write_json(json_out, answer)
    print_answer(answer if as_json else answer_text(answer))
    if baseline is not None and not as_json:
        print(against_text(found, baseline))
    if annotate:
        for line in annotation_lines(answer, found, script[0] if script else None):
            print(line, file=sys.stderr if as_json else sys.stdout)
    status = COULD_NOT if status_of(answer) == COULD_NOT else DEVIATED if found.fails else 0
    if status:
        sys.stdout.flush()
        raise typer.Exit(status)
