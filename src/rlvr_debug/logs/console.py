"""What readers of consoles are made of: lines, the runs and ranks that rows are of, and dictionaries over several lines."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rlvr_debug.errors import InputError
from rlvr_debug.logs.names import ROUNDED, part_of, resolve

Values = dict[str, float | str]
NUMBER = (
    r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|NaN|inf(?:inity)?|Infinity)"
)
_MOST_OPEN = 1 << 16  # characters of a dictionary over several lines
MOST_ROWS = 1_000_000
_PAIR = re.compile(
    rf"""(['"])(?P<name>[^'"]{{1,300}})\1\s*:\s*(?:[\w.]+\()?(['"]?)(?P<value>{NUMBER}(?:/\d+)?)\3(?=[\s,)}}\]]|$)"""
)
_FLAT = re.compile(r"\{([^{}]*)\}")
_ROUNDED = re.compile(r"-?0\.0{3,4}")
# what is set, not measured: alone it makes no row
_NO_METRICS = ("step", "learning_rate", "seconds", "run_seconds")


@dataclass(frozen=True)
class Line:
    """text: without colours, an actor's name and a rank, 0 where it names none. before: some of what precedes it."""

    number: int
    text: str
    rank: int
    before: bytes


@dataclass
class _Run:
    """Rows of one run of one process, each with its place. first, last: the places of its ends, by what rows are ordered by."""

    rows: list[tuple[Values, float | None]] = field(default_factory=list)
    first: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)


class Reader:
    """Rows of one framework's console. marks: a line without any is not shown, unless it is open. shared: others print so, too; last: where no other has a row."""

    name: ClassVar[str]
    marks: ClassVar[tuple[bytes, ...]]
    shared: ClassVar[bool] = False
    last: ClassVar[bool] = False
    open = False
    almost: Line | None = None  # the first line that is nearly one of its own
    cut = 0
    resumed = 0
    at = 0  # the line of the last row
    planned = 0  # steps, as the progress bar beside the rows has them

    def __init__(self) -> None:
        self.ranks: dict[int, list[_Run]] = {}

    def read(self, line: Line) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Take what is still open after the last line."""

    def finish(self, rows: Sequence[Values]) -> None:
        """Complete the rows of the run that is read."""

    def add(self, values: Values, line: Line, order: str = "", at: float | None = None) -> None:
        """Add a row. at: where it stands in its run, by `order`: one that begins again is another run."""
        self.at = max(self.at, line.number)
        runs = self.ranks.setdefault(line.rank, [_Run()])
        run = runs[-1]
        if at is not None:
            if at < run.last.get(order, at):
                if at <= run.first[order]:
                    runs.append(run := _Run())
                else:
                    # it went on from a checkpoint: what came after that was not kept
                    run.rows = [row for row in run.rows if row[1] is None or row[1] < at]
                    self.resumed += 1
            run.first.setdefault(order, at)
            run.last[order] = at
        run.rows.append((values, at))
        if len(run.rows) > MOST_ROWS:
            raise InputError(f"line {line.number}: expected at most {MOST_ROWS} rows, found more")

    def join(self, values: Values, line: Line) -> None:
        runs = self.ranks.get(line.rank)
        if runs and runs[-1].rows:
            runs[-1].rows[-1][0].update(values)
        else:
            self.add(values, line)

    @property
    def size(self) -> int:
        return sum(len(run.rows) for runs in self.ranks.values() for run in runs)


class Dictionaries(Reader):
    """What prints rows as dictionaries, in Python's or JSON's form, in one line or over several."""

    _rest = ""

    def read(self, line: Line) -> None:
        text = line.text
        if self._rest:
            if "{'" in text or '{"' in text:
                self._cut()
            else:
                text = self._rest + text
        end = 0
        for match in _FLAT.finditer(text):
            values = pairs(match[1])
            if values:
                self.found(text[end : match.start()], values, line)
            end = match.end()
        begin = max(text.rfind("{'", end), text.rfind('{"', end))
        self._rest = text[end:] if begin >= 0 and len(text) < _MOST_OPEN else ""
        self.open = bool(self._rest)

    def found(self, before: str, values: Values, line: Line) -> None:
        """Take a dictionary with numbers. before: what stands before it in its line."""
        raise NotImplementedError

    def end(self) -> None:
        self._cut()

    def _cut(self) -> None:
        self.cut += bool(is_metrics(pairs(self._rest)))
        self._rest = ""


def pairs(text: str) -> Values:
    """Return the numbers of a dictionary without its braces; `10/400` stays text."""
    found = ((match["name"], match["value"]) for match in _PAIR.finditer(text))
    return {name: value if "/" in value else number(name, value) for name, value in found}


def number(name: str, text: str) -> float | str:
    """Return the number that was printed, or ROUNDED for a learning rate with so few decimals that none of it is left."""
    rounded = _ROUNDED.fullmatch(text) and (resolve(name) or ("",))[0] == "learning_rate"
    return ROUNDED if rounded else float(text)


def is_metrics(names: Iterable[str]) -> bool:
    """Return whether what has these names is a row of metrics: one of them, at least, was measured."""
    known = ((resolve(name), name) for name in names)
    return any(found[0] not in _NO_METRICS if found else part_of(name) for found, name in known)
