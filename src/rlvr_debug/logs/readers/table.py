"""Tables that a notebook shows and people copy (TRL's and unsloth's), in Markdown, by tabs or by blanks, anywhere in a text."""

import re
from collections.abc import Sequence

from rlvr_debug.logs.console import NUMBER, Line, Reader, Values, is_metrics
from rlvr_debug.logs.names import is_known

_NUMBER = re.compile(NUMBER)
_RULE = re.compile(r"[\s|:+─━═-]*")
_BLANK = ("", "-", "—", "No log", "None", "N/A", "NaN", "nan")
# two words in a table that is parted by blanks
_WORDS = re.compile(r"\b(Training|Validation) Loss\b|\bNo log\b")


class Console(Reader):
    name = "a table of metrics"
    marks = (b"Step", b"reward")
    _names: Sequence[str] = ()

    def read(self, line: Line) -> None:
        if not self.open and any(sign in line.text for sign in ":={"):
            return
        cells = _cells(line.text)
        if not self._row(cells, line) and not _RULE.fullmatch(line.text):
            known = [name for name in cells if is_known(name)]
            self._names = cells if len(known) > 1 and is_metrics(known) else ()
            if self._names:
                self.almost = self.almost or line
        self.open = bool(self._names)

    def _row(self, cells: list[str], line: Line) -> bool:
        """Take a line as a row of the table that is open. A column without a name, a frame's index, comes first."""
        cells = cells[1:] if len(cells) == len(self._names) + 1 else cells
        if not self._names or len(cells) != len(self._names):
            return False
        if not all(cell in _BLANK or _NUMBER.fullmatch(cell) for cell in cells):
            return False
        pairs = zip(self._names, cells, strict=True)
        values: Values = {name: float(cell) for name, cell in pairs if _NUMBER.fullmatch(cell)}
        if not values:
            return False
        step = next((values[name] for name in values if name.lower() == "step"), None)
        self.add(values, line, "step", step if isinstance(step, float) else None)
        return True


def _cells(text: str) -> list[str]:
    text = text.strip(" \r\n").replace("│", "|").replace("┃", "|")
    if "|" in text:
        return [cell.strip() for cell in text.removeprefix("|").removesuffix("|").split("|")]
    if "\t" in text:
        return [cell.strip() for cell in text.split("\t")]
    text = _WORDS.sub(lambda match: match[0].replace(" ", "_"), text.replace(" / ", "/"))
    return [cell.replace("_Loss", " Loss").replace("No_log", "No log") for cell in text.split()]
