"""Rows of metrics among whatever else a run printed, and how it ends: each reader looks for its own, in lines that hold one of its
marks.
"""

import importlib
import pkgutil
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from rlvr_debug.errors import InputError, short
from rlvr_debug.logs.console import Line, Reader
from rlvr_debug.logs.launch import Launch
from rlvr_debug.logs.structured import Rows, rank_of

_BLOCK = 1 << 18
_MOST_LINE = 1 << 18  # no line of ours is that long
_BEFORE = 1 << 12  # bytes before a line, which a reader may look back into
_END = re.compile(rb"(?<=[\r\n])")
_CODES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
# what a launcher puts before a process' lines, and Ray before its actors'
_RANK = re.compile(r"\s*(?:\[(?:rank|default)(\d+)\]:?|(\d+):)\s")
_ACTOR = re.compile(r"\s*\([\w.]+ pid=\d+[^)]*\) ?")


def readers() -> Iterator[Reader]:
    """Yield a new reader of each module in the folder."""
    package = importlib.import_module("rlvr_debug.logs.readers")
    for info in pkgutil.iter_modules(package.__path__):
        yield importlib.import_module(f"{package.__name__}.{info.name}").Console()


def printed_rows(
    path: Path, stream: BinaryIO, wrong: InputError | None = None, run: str = ""
) -> Rows:
    """Return the rows of the reader that has most of them. wrong: why the file is no table, where that is likelier. run: the
    number of the run to read, the last one by default.
    """
    all_of_them, settings, ending = list(readers()), Launch(), Ending()
    try:
        last = _feed(stream, [*all_of_them, settings, ending])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    for reader in (*all_of_them, settings):
        reader.end()
    # where two have as many rows it is the framework's own
    found = [each for each in all_of_them if each.size]
    if not found:
        if failed := ending.error(0, last):
            raise InputError(f"{path}: found no row of metrics. {failed}")
        raise wrong or _nothing(path, all_of_them)
    best = max(found, key=lambda each: (not each.last, each.size, not each.shared))
    rank = min(best.ranks)
    runs = best.ranks[rank]
    if run and run not in map(str, range(1, len(runs) + 1)):
        raise InputError(
            f"--run {run}: {path} has {len(runs)}, expected one's number, 1 for the first"
        )
    which = int(run or len(runs))
    rows = [values for values, _ in runs[which - 1].rows]
    best.finish(rows)
    read = Rows(best.name, rows, tuple(_notes(path, best, rank, which)), settings.found, run)
    if which < len(runs):
        return read
    bar = ending.bars.get(best.planned, {})
    stopped = bar and max(bar) < best.planned
    step = f"The log ends at step {max(bar)} of {best.planned}." if stopped else ""
    pace = statistics.median(bar.values()) if bar else None
    return replace(read, ends=ending.error(best.at, last) or step, pace=pace)


def _notes(path: Path, best: Reader, rank: int, which: int) -> Iterator[str]:
    """Yield what was seen beside the rows that are read. which: the number of their run."""
    sizes = [len(run.rows) for run in best.ranks[rank]]
    if len(sizes) > 1:
        listed, last = ", ".join(map(str, sizes[-5:])), which == len(sizes)
        read = "the last one is read, --run 1 reads the first" if last else f"run {which} is read"
        yield f"{len(sizes)} runs are in this file (rows: {listed}): {read}"
    if best.resumed:
        yield f"the run went back to an earlier step {best.resumed} times: of repeated steps the later rows are read"
    if others := sorted(best.ranks)[1:]:
        listed = ", ".join(map(str, others[:5]))
        yield f"rows of ranks {listed} are left out: those of rank {rank} are read"
    if number := rank or rank_of(path):
        yield f"this is the output of rank {number}: rank 0 may print more, and other rollouts"
    if best.cut:
        yield f"rows that are cut off were left out: {best.cut}"


def _nothing(path: Path, tried: Sequence[Reader]) -> InputError:
    names = ", ".join(reader.name for reader in tried)
    said = f"{path}: found no row of metrics (tried JSON, CSV, {names})"
    near = [(each.almost.number, each.name, each.almost.text) for each in tried if each.almost]
    if near:
        number, name, text = min(near)
        said += f"; line {number} is nearest to {name}: {short(text.strip())}"
    if rank := rank_of(path):
        said += f"; this is rank {rank}'s output, most trainers print rows on rank 0 alone"
    return InputError(
        f"{said}; expected columns such as reward, kl or grad_norm: set logging_steps, or give trainer_state.json"
    )


def _feed(stream: BinaryIO, shown: Sequence[Reader]) -> int:
    """Show the parts of lines to those that look for them, with what stood before; a rank stands before a line's first.

    Return the number of the last line.
    """
    marks = _any_mark(shown)
    first, before, ended, number = b"", b"", True, 0
    for number, part in _parts(stream):
        first = part if ended else first
        ended = part.endswith(b"\n")
        told = part.rstrip(b"\r\n") if len(part) <= _MOST_LINE else b""
        if told and (any(each.open for each in shown) or marks.search(told)):
            text = _plain(told)
            own, named = _RANK.match(text), _RANK.match(_plain(first[:_BEFORE]))
            rank = int(named[1] or named[2]) if named else 0
            line = Line(number, text[own.end() :] if own else text, rank, before)
            for each in shown:
                if each.open or any(mark in told for mark in each.marks):
                    each.read(line)
            if any(each.last for each in shown) and any(r.ranks for r in shown if not r.last):
                shown = [each for each in shown if not each.last]
                marks = _any_mark(shown)
        before = (before + part)[-_BEFORE:]
    return number


def _any_mark(shown: Sequence[Reader]) -> re.Pattern[bytes]:
    return re.compile(b"|".join({re.escape(mark) for each in shown for mark in each.marks}))


def _parts(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield lines, or the parts of one that a progress bar drew over each other, each with the number of its line."""
    number, rest = 1, b""
    while data := stream.read(_BLOCK):
        *parts, rest = _END.split(rest + data)
        if len(rest) > _MOST_LINE:
            parts, rest = [*parts, rest], b""
        for part in parts:
            yield number, part
            number += part.endswith(b"\n")
    if rest:
        yield number, rest


def _plain(data: bytes) -> str:
    """Return a line without colours and without the name of the actor that printed it."""
    text = data.decode("utf-8-sig", "replace")
    text = _CODES.sub("", text) if "\x1b" in text else text
    return _ACTOR.sub("", text, count=1) if text.lstrip().startswith("(") else text


# --- its end: an error, or a step of its progress bar; and how long that bar's steps took


_TRACEBACK = "Traceback (most recent call last)"
_ERROR = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?:\([\w.]*\))?(?::.*|$)")
# what a launcher says of the process that failed
_LAUNCHER = re.compile(r"\S*(?:ChildFailedError|CalledProcessError|SystemExit)\b")
_BAR = re.compile(r"\b(\d+)/(\d+) \[[^\]]{0,60}?, *([\d.]+)(s/it|it/s)")
_LONGEST = 160  # characters of an error
_AFTER = 100  # lines that a launcher or a logger may print after it


class Ending(Reader):
    """errors: each with its line. bars: by length of a progress bar, seconds per step by step; of a bar begun anew, the last."""

    name = "its end"
    marks = (_TRACEBACK.encode(), b"s/it", b"it/s")

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[tuple[int, str]] = []
        self.bars: dict[int, dict[int, float]] = {}

    def read(self, line: Line) -> None:
        if _TRACEBACK in line.text:
            self.open = True
        elif self.open and (error := _ERROR.match(line.text)):
            self.errors.append((line.number, error[0].strip()[:_LONGEST]))
            self.open = False
        for step, length, rate, unit in _BAR.findall(line.text):
            bar = self.bars.setdefault(int(length), {})
            if int(step) < max(bar, default=0):
                bar.clear()
            seconds = float(rate.strip(".") or 0)
            bar[int(step)] = seconds if unit == "s/it" else 1 / max(seconds, 1e-9)

    def error(self, after: int, last: int) -> str:
        """Return the error that ends the log, as a sentence, "" for none. after: the line of the last row; last: the last line."""
        found = [text for n, text in self.errors if n > after and last - n <= _AFTER]
        own = [text for text in found if not _LAUNCHER.match(text)] or found
        return f"The log ends in an error: {own[-1]}" if own else ""
