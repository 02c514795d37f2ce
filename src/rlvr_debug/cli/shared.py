"""What the commands share: the application that they belong to, their common options, and how answers are printed."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from rlvr_debug.checkout import ROOT, checkout
from rlvr_debug.errors import InputError, plain
from rlvr_debug.files import write_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rlvr_debug.study.model import Params

_Function = TypeVar("_Function", bound=Callable[..., None])


class _Command(TyperCommand):
    """A command that says in one line what it cannot parse, and how a study is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            said = _said(error)
            if "extra arg" in said and "overlay" in (each.name for each in self.params):
                said += "; name a study by --overlay"
            raise InputError(f"{self.name}: {said}") from None


class _Commands(TyperGroup):
    """The commands; one that is none is one line, and for a file it says which command reads it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            log = f"; `rlvr-debug diagnose {args[0]}` reads a log" if Path(args[0]).exists() else ""
            raise InputError(_said(error) + log) from None


def _said(error: Exception) -> str:
    """Return what is wrong with the words of a command; any other error is raised again."""
    if not hasattr(error, "format_message"):  # of click, of which Typer may have a copy
        raise error
    return str(error.format_message()).rstrip(".")


app = typer.Typer(
    name="rlvr-debug",
    cls=_Commands,
    help="My GRPO run does not learn: why? Causes, found by experiment. A user needs the first six commands.",
    epilog="Exit status: 0 done; 1 a job of the study failed; 2 bad input, in one line on stderr; "
    "3 check found a deviation; 130 interrupted. docs/cli.md has an example of each command with what it prints.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_WIDE = 200  # characters of a table that goes to a file or another program

Overlay = Annotated[
    Path | None, typer.Option(help="A study's parameters, merged over params.yaml.")
]
Hypotheses = Annotated[
    list[str] | None,
    typer.Option(
        "--hypothesis",
        help="Test only this one (repeatable); writes that study to studies/NAME.yaml.",
    ),
]
Cores = Annotated[str | None, typer.Option(help="A number, or all; by default as in the profile.")]
Every = Annotated[bool, typer.Option("--all", help="All phases, even once a cause is found.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything, as JSON.")]


@app.callback(invoke_without_command=True)
def _options(
    shown: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if shown:
        from importlib.metadata import version

        print(f"rlvr-debug {version('rlvr-debug')}")
        raise typer.Exit


def command(*examples: str, **settings: Any) -> Callable[[_Function], _Function]:
    """Return a command's decorator; its help ends with these examples. settings: Typer's."""
    # \b: lines stay as they are
    lines = "\n".join(f"  rlvr-debug {example}" for example in examples)
    return app.command(cls=_Command, epilog=f"\b\nExamples:\n{lines}", **settings)


def narrowed(overlay: Path | None, hypotheses: Sequence[str] | None) -> Path | None:
    """Return the overlay of a study of these hypotheses alone, which is written and named; without any, that given."""
    if not hypotheses:
        return overlay
    from rlvr_debug.study.params import only

    path = only(hypotheses, overlay)
    print(f"wrote {path}, the overlay of this study", file=sys.stderr)
    return path


def home() -> Path:
    """Return the checkout. Raise InputError outside of it: a command works on the studies of where it is started."""
    root = checkout()
    if not Path.cwd().is_relative_to(ROOT):
        raise InputError(f"{Path.cwd()}: is in no checkout with studies; first type: cd {ROOT}")
    return root


def study_of(overlay: Path | None, every_phase: bool = False) -> tuple[Params, Path]:
    """Return the params and the folder of the default study or of an overlay's."""
    home()
    from rlvr_debug.study.params import study_params

    params = study_params(overlay, every_phase)
    # after that: what a wheel alone does without
    from rlvr_debug.study.folder import study_folder

    return params, study_folder(params, overlay)


def need_extra(extra: str, *modules: str) -> None:
    """Raise InputError for the first module that is not installed. extra: that of this package which has them all."""
    from importlib.util import find_spec

    missing = next((name for name in modules if find_spec(name) is None), None)
    if missing is not None:
        raise InputError(f"{missing} is not installed: pip install 'rlvr-debug[{extra}]'")


def one_of(option: str, found: str, *known: str) -> None:
    """Raise InputError for a word that is not `known`."""
    if found not in known:
        raise InputError(f"--{option}: found '{found}', expected {' or '.join(known)}")


def console() -> Console:
    """Return where an answer is printed. Off a terminal, lines are not cut and have no control codes."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDE
    # no markup: what it prints comes from files
    return Console(width=width, markup=False, highlight=False, emoji=False)


def print_answer(answer: Any) -> None:
    """Print an answer: text, on a terminal in lines that fit it, and anything else, which is for programs, as JSON."""
    text = plain(answer) if isinstance(answer, str) else json.dumps(answer, indent=2)
    if isinstance(answer, str) and sys.stdout.isatty():
        text = folded(text, shutil.get_terminal_size().columns)
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise SystemExit(141) from None  # Typer would make it 1, that of a job that failed
    except OSError as error:
        # Python would try it again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        error.filename = "standard output"
        raise


def folded(text: str, width: int) -> str:
    """Return the text with lines that are wider folded between words, as far in as they begin."""

    def fold(line: str) -> str:
        further = " " * (len(line) - len(line.lstrip()))
        wrap = textwrap.TextWrapper(
            width, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
        )
        return line if len(line) <= width else wrap.fill(line)

    return "\n".join(map(fold, text.split("\n")))


def write_page(path: Path, text: str) -> None:
    """Write a file that an option names, and say so."""
    write_text(path, text)
    print(f"{path}: written", file=sys.stderr)


def table(*names: str, **sides: Any) -> Table:
    """Return an empty table with these columns. sides: how each of the last ones is aligned."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False)
    for name in (*names, *sides):
        shown.add_column(name, justify=sides.get(name, "left"))
    return shown
