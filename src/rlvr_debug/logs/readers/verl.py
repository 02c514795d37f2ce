"""verl's console (0.8.0.dev, utils/logger/aggregate_logger.py): `step:3 - actor/entropy:0.41 - …`, validation in lines of its own."""

import re

from rlvr_debug.logs.console import NUMBER, Line, Reader, number

_STEP = re.compile(r"\bstep:(\d+)(?= - )")
_PAIR = re.compile(rf" - ([^\s:][^:]{{0,300}}):(?:[\w.]+\()?({NUMBER})\)?(?=\s|$|\[|\x1b)")
# a terminal's or a page's width wraps what is copied from it
_WRAPPED = re.compile(rf"[^\s{{}}']*:{NUMBER}(?: - |$)")


class Console(Reader):
    name = "verl's console"
    marks = (b"step:",)
    _text = ""
    _line: Line | None = None

    def read(self, line: Line) -> None:
        step = _STEP.search(line.text)
        if step:
            self.end()
            self._text, self._line = line.text[step.start() :], line
        elif self._line and _WRAPPED.match(line.text):
            self._text += line.text
        elif self._line:
            self.end()
        self.open = self._line is not None

    def end(self) -> None:
        if not self._line:
            return
        step = _STEP.match(self._text)
        found = {name: number(name, value) for name, value in _PAIR.findall(self._text)}
        if step and found:
            at = float(step[1])
            self.add({"step": at, **found}, self._line, "step", at)
        else:
            self.almost = self.almost or self._line
        self._text, self._line = "", None
