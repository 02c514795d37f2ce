"""The command that checks a trainer: a user's script, or a record of any program."""

import difflib
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from rlvr_debug.cli.shared import AsJson, command, need_extra, print_answer, write_page
from rlvr_debug.errors import InputError, plain
from rlvr_debug.files import writable, write_json

# what no script's name ends with
_LOGS = (
    *(".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".wandb"),
    *(".log", ".out", ".txt", ".ipynb"),
)

Script = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SCRIPT ARGS... | -m MODULE ARGS...]",
        help="A script, or a module, that trains with TRL's GRPOTrainer, and its own arguments. It is not changed.",
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
    "check --expect loss=gmpo -m my_package.train",
    "check --record runs/record",
    "check --baseline before.json --annotate train.py",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
)
@_by_all
def check(
    context: typer.Context,
    script: Script = None,
    record: Annotated[
        Path | None, typer.Option(help="Check this record, which any program may write.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Keep the record of the script's steps in this new folder."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=64, help="Optimizer steps.")] = 3,
    rewards: Annotated[
        bool,
        typer.Option("--rewards/--no-rewards", help="Call the reward functions again, to compare."),
    ] = True,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page of the findings, with the tokens that deviate."),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="A file that --json-out wrote. Only new or changed deviations are then status 3."
        ),
    ] = None,
    json_out: Annotated[
        Path | None, typer.Option(help="Also write what --json prints to this file.")
    ] = None,
    limit: Annotated[
        float,
        typer.Option(min=1, help="Stop if one of several processes is stuck for so many seconds."),
    ] = 600.0,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SEGMENT=NAME",
            help="Declare what a segment computes on purpose, such as loss=gmpo; `rlvr_debug.expect` in the script takes functions.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with status 3 also for settings out of bounds.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print all segments and settings, with bounds.")
    ] = False,
    show_prompt: Annotated[
        bool,
        typer.Option("--show-prompt", help="Also print the first prompt as the policy reads it."),
    ] = False,
    annotate: Annotated[
        bool, typer.Option("--annotate", help="Also print GitHub annotations of new deviations.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compute your trainer's first steps again.

    It records a few steps and recomputes each segment by a reference; look first at the first that deviates. A script
    runs in this Python until GRPOTrainer.train has made the steps, then it is stopped; its output goes to stderr. Exit
    status 0: no segment deviates; 3: one deviates (with --baseline: in a new way); 2: the script did not run, or a segment
    could not be computed.
    """
    options = (o for each in context.command.params for o in (*each.opts, *each.secondary_opts))
    _need_words(script or [], [option for option in options if option.startswith("-")])
    if script and script[0] in ("-m", "--module"):
        script = ["-m", *script[1:]]
        if len(script) < 2:
            raise InputError("-m: no module given, expected one that trains with GRPOTrainer")
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
        raise InputError(
            "--save: found with --record, which is already a record; give --save with a script"
        )
    need_extra("check", "torch", "safetensors", "transformers", *(["trl"] if script else []))
    from rlvr_debug.replay.answer import COULD_NOT, DEVIATED, answer_text, status_of
    from rlvr_debug.replay.baseline import against, against_text, annotation_lines, read_baseline
    from rlvr_debug.replay.declared import declare, named

    meant = named(expect or [])
    before = {} if baseline is None else read_baseline(baseline)
    answer: Mapping[str, Any]
    if record is not None:
        from rlvr_debug.recorders.converters import reader_of
        from rlvr_debug.replay.store import check_folder

        declare(meant)
        answer = check_folder(record, reader_of(record))
    else:
        from rlvr_debug.recorders.trl.check_script import How, check_script
        from rlvr_debug.recorders.trl.launched import launched, launcher_words

        assert script is not None
        head = 2 if script[0] == "-m" else 1
        words = [*script[:head], *launcher_words(), *script[head:]]
        answer = check_script(words, How(steps, rewards, save, launched(), limit, meant))
    found = against(answer, before)
    if baseline is not None:
        answer = {**answer, "against": asdict(found)}
    if html is not None:
        from rlvr_debug.report.offline import check_html

        write_page(html, check_html(answer))
    if json_out is not None:
        write_json(json_out, answer)
        print(f"{json_out}: written", file=sys.stderr)
    print_answer(answer if as_json else answer_text(answer, verbose, show_prompt))
    if baseline is not None and not as_json:
        print_answer(against_text(found, baseline))
    if annotate:
        for line in annotation_lines(
            answer, found, None if not script or script[0] == "-m" else script[0]
        ):
            print(plain(line), file=sys.stderr if as_json else sys.stdout)
    status = status_of(answer, strict)
    if status != COULD_NOT and not (strict and answer["remarks"]):
        status = DEVIATED if found.fails else 0
    if status:
        sys.stdout.flush()
        raise typer.Exit(status)


def _need_words(words: Sequence[str], known: Sequence[str]) -> None:
    """Raise InputError for an option that the check does not have; say which of the script's may be meant for the check."""
    for place, word in enumerate(words):
        option = word.partition("=")[0]
        near = difflib.get_close_matches(option, known, n=1, cutoff=0.8)
        if not place and option.startswith("-") and option not in ("-m", "--module"):
            own = "the script's own options stand after it"
            said = f"did you mean '{near[0]}'?" if near else own
            raise InputError(f"check: no such option {option}: {said}")
        if place and (option in known or (option.startswith("--") and near)):
            print(
                f"note: {option} is passed to the script; the check's own {near[0]} goes before it",
                file=sys.stderr,
            )
