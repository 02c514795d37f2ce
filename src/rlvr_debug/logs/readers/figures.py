"""Names and numbers in lines of any other form, read where nothing else has a row: `Step 3: avg reward = 0.4`, `│ kl │ 1e-3 │`."""

import re
from collections.abc import Iterator

from rlvr_debug.logs.console import NUMBER, Line, Reader, Values, is_metrics, number
from rlvr_debug.logs.names import is_known, resolve

# a name is one word or two; what has several numbers beside it is a row of another table
_FIGURE = re.compile(
    rf"""(?<![\w./@-])([A-Za-z][\w./@-]*(?: [A-Za-z][\w./-]*)?)['"]?[\s│┃|]{{0,99}}[:=]?[\s│┃|]{{0,99}}"""
    rf"""({NUMBER})(%?)(?=[\s,;:/)}}\]│┃|]|$)(?![\s│┃|]{{1,99}}{NUMBER})"""
)


class Console(Reader):
    """A row ends where a name comes again, or another step. One figure makes none, unless it is the reward of a step."""

    name = "figures by their names"
    marks = (b"eward", b"core", b"oss", b"tep", b"kl", b"KL", b"grad")
    last = True
    _line: Line | None = None

    def __init__(self) -> None:
        super().__init__()
        self._values: Values = {}

    def read(self, line: Line) -> None:
        if line.rank or not any(map(str.isalnum, line.text)):
            return
        self._line, found = line, list(_figures(line.text))
        steps = [value for name, value in found if name == "step"]
        if steps and self._values.get("step", steps[-1]) != steps[-1]:
            self.end()
        for name, value in found:
            if name in self._values and name != "step":
                self.end()
            self._values[name] = value
        self.open = bool(found)

    def end(self) -> None:
        values, self._values = self._values, {}
        measured = [name for name in values if is_metrics([name])]
        step = values.get("step")
        of_step = step is not None and any(_is(name, "reward") for name in measured)
        if self._line and (len(measured) > 1 or of_step):
            self.add(values, self._line, "step", step if isinstance(step, float) else None)


def _is(name: str, quantity: str) -> bool:
    return (resolve(name) or ("",))[0] == quantity


def _figures(text: str) -> Iterator[tuple[str, float | str]]:
    """Yield names that are known, and numbers; of two words the last one, unless both are a name."""
    for words, shown, unit in _FIGURE.findall(text):
        name = next((n for n in (words.replace(" ", "_"), words.split()[-1]) if is_known(n)), "")
        value = number(name, shown)
        if name:
            value = value / 100 if unit and isinstance(value, float) else value
            yield "step" if _is(name, "step") else name, value
