"""Rows of metrics among whatever else a run printed: each reader of the folder beside this file looks for its own.

A file is read in blocks, and a line is looked at only where it holds one of a reader's marks.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from rlvr_debug.errors import InputError, short
from rlvr_debug.logs.console import Line, Reader
from rlvr_debug.logs.launch import Launch
from rlvr_debug.logs.structured import Rows, rank_of

_BLOCK = 1 << 18
_MOST_LINE = 1 << 18  # no line of ours is that long
_BEFORE = 1 << 12  # bytes before a line, which a reader may look back into
_CODES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
# what a launcher puts before a process' lines, and Ray before its actors'
_RANK = re.compile(r"\s*(?:\[(?:rank|default)(\d+)\]:?|(\d+):)\s")
_ACTOR = re.compile(r"\s*\([\w.]+ pid=\d+[^)]*\) ?")


def readers() -> Iterator[Reader]:
    """Yield a new reader of each module in the folder."""
    package = importlib.import_module("rlvr_debug.logs.readers")
    for info in pkgutil.iter_modules(package.__path__):
        yield importlib.import_module(f"{package.__name__}.{info.name}").Console()


def printed_rows(path: Path, stream: BinaryIO, wrong: InputError | None = None) -> Rows:
    """Return the rows of the reader that has most of them. wrong: why the file is no table, where that is likelier.

    Raise InputError where there is none.
    """
    all_of_them, settings = list(readers()), Launch()
    try:
        _feed(stream, [*all_of_them, settings])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    for reader in all_of_them:
        reader.end()
    settings.end()
    # where two have as many rows it is the framework's own
    best = max(all_of_them, key=lambda reader: (reader.size, not reader.shared))
    if not best.size:
        raise wrong or _nothing(path, all_of_them)
    rank = min(best.ranks)
    rows = [values for values, _ in best.ranks[rank][-1].rows]
    best.finish(rows)
    return Rows(best.name, rows, tuple(_notes(path, best, rank)), settings.found)


def _notes(path: Path, best: Reader, rank: int) -> Iterator[str]:
    """Yield what was seen beside the rows that are read."""
    sizes = [len(run.rows) for run in best.ranks[rank]]
    if len(sizes) > 1:
        listed = ", ".join(map(str, sizes[-5:]))
        yield f"{len(sizes)} runs are in this file (rows: {listed}): the last one is read"
    if best.resumed:
        yield f"the run went back and on again {best.resumed} times: later rows count"
    if others := sorted(best.ranks)[1:]:
        listed = ", ".join(map(str, others[:5]))
        yield f"rows of ranks {listed} are left out: those of rank {rank} are read"
    if number := rank or rank_of(path):
        yield f"this is the output of rank {number}: what rank 0 prints may be of other rollouts, and more"
    if best.cut:
        yield f"rows that are cut off were left out: {best.cut}"


def _nothing(path: Path, tried: Sequence[Reader]) -> InputError:
    names = ", ".join(reader.name for reader in tried)
    near = min(
        (reader for reader in tried if reader.almost),
        key=lambda reader: reader.almost.number if reader.almost else 0,
        default=None,
    )
    said = f"{path}: found no row of metrics (tried JSON, CSV, {names})"
    if near and near.almost:
        line = near.almost
        said += f"; line {line.number} is nearest to {near.name}: {short(line.text.strip())}"
    if number := rank_of(path):
        said += f"; this is rank {number}'s output, most trainers print rows on rank 0 alone"
    return InputError(f"{said}; expected columns such as reward, kl or grad_norm")


def _feed(stream: BinaryIO, shown: Sequence[Reader]) -> None:
    """Show each line to those that look for it, a block of whole lines at a time, and what stood before it."""
    number, begin, kept = 0, 0, b""
    while data := stream.read(_BLOCK):
        kept += data
        end = kept.rfind(b"\n", begin) + 1
        if not end and len(kept) > _MOST_LINE:
            end = kept.rfind(b"\r", begin) + 1 or len(kept)
        if end:
            number = _block(kept[:end], begin, number, shown)
            begin = min(end, _BEFORE)
            kept = kept[end - begin :]
    _block(kept, begin, number, shown)


def _block(data: bytes, begin: int, number: int, shown: Sequence[Reader]) -> int:
    """Show the lines from `begin` on. number: of lines before it; return that of lines before the end."""
    marks = {mark for each in shown for mark in each.marks if data.find(mark, begin) >= 0}
    live = [(each, [mark for mark in each.marks if mark in marks]) for each in shown]
    live = [(each, own) for each, own in live if own or each.open]
    starts = iter(sorted({start for mark in marks for start in _starts(data, mark, begin)}))
    counted = position = begin
    while position < len(data):
        if not any(each.open for each, _ in live):
            position = next((start for start in starts if start >= position), len(data))
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end
        if position < end:
            number += data.count(b"\n", counted, position)
            counted = position
            _show(data[position:end], data[max(position - _BEFORE, 0) : position], number + 1, live)
        position = end + 1
    return number + data.count(b"\n", counted)


def _starts(data: bytes, mark: bytes, begin: int) -> Iterator[int]:
    """Yield where lines begin that hold a mark."""
    place = data.find(mark, begin)
    while place >= 0:
        yield data.rfind(b"\n", begin, place) + 1 or begin
        end = data.find(b"\n", place)
        place = data.find(mark, end) if end >= 0 else -1


def _show(
    line: bytes, before: bytes, number: int, live: Sequence[tuple[Reader, Sequence[bytes]]]
) -> None:
    """Show the parts of a line that a progress bar drew over each other. A rank stands before the first of them."""
    named = None
    for part in line.split(b"\r"):
        taking = [each for each, own in live if each.open or any(mark in part for mark in own)]
        if taking and len(part) <= _MOST_LINE:
            named = _RANK.match(_plain(line[:_BEFORE])) if named is None else named
            text = _plain(part)
            own = _RANK.match(text)
            rank = int(named[1] or named[2]) if named else 0
            for each in taking:
                each.read(Line(number, text[own.end() :] if own else text, rank, before))
        before = (before + part)[-_BEFORE:]


def _plain(data: bytes) -> str:
    """Return a line without colours and without the name of the actor that printed it."""
    text = data.decode("utf-8-sig", "replace")
    text = _CODES.sub("", text) if "\x1b" in text else text
    return _ACTOR.sub("", text, count=1) if text.lstrip().startswith("(") else text
