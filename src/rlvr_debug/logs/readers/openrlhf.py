"""OpenRLHF's console (0.11.0, trainer/ppo_trainer.py and ray/ppo_actor.py): `Global step 3: {…}`, else the postfix of `Train epoch` bars."""

import re

from rlvr_debug.logs.console import NUMBER, Dictionaries, Line, Values, is_metrics
from rlvr_debug.logs.names import KNOWN

_STEP = re.compile(r"[Gg]lobal[ _]step:? (\d+)")
_BAR = re.compile(
    r"Train epoch \[(\d+)/\d+\].{0,300}?\b(\d+)/(\d+) \[[^\]]{0,99}?, (\w+=[^\]]{0,2000})\]"
)
_PAIR = re.compile(rf"(\w+)=({NUMBER})")
_NAMES = KNOWN["labels"]["openrlhf"]


class Console(Dictionaries):
    name = "OpenRLHF's console"
    marks = (b"lobal", b"Train epoch")

    def __init__(self) -> None:
        super().__init__()
        self._bars: list[tuple[Values, Line]] = []

    def read(self, line: Line) -> None:
        bar = _BAR.search(line.text)
        if bar:
            values: Values = {_NAMES.get(name, name): float(n) for name, n in _PAIR.findall(bar[4])}
            # of a bar that is drawn again and again, what it shows in the end
            if bar[2] == bar[3] and is_metrics(values):
                self._bars.append((values, line))
        elif self.open or "{" in line.text:
            super().read(line)

    def found(self, before: str, values: Values, line: Line) -> None:
        step = _STEP.search(before)
        if not step:
            return
        at = float(step[1])
        if "eval_metrics" in before:
            named = {f"eval/{n.removeprefix('eval/')}": value for n, value in values.items()}
            self.add({"global_step": at, **named}, line)
        elif is_metrics(values):
            self.add({"global_step": at, **values}, line, "step", at)
        else:
            self.almost = self.almost or line

    def end(self) -> None:
        super().end()
        if not self.size:
            for values, line in self._bars:
                self.add(values, line)
