"""How a run's console ends: in an error, or at a step of its progress bar; and how long that bar's steps took."""

import re

from rlvr_debug.logs.console import Line, Reader

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
