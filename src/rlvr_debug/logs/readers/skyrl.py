"""SkyRL's console (a956457, train/utils/tracking.py): `Step 3: ` and a dictionary with quoted numbers over several lines."""

import re

from rlvr_debug.logs.console import Dictionaries, Line, Values, is_metrics

_STEP = re.compile(r"\bStep (\d+):\s*$")


class Console(Dictionaries):
    name = "SkyRL's console"
    marks = (b"Step",)
    _step: float | None = None

    def read(self, line: Line) -> None:
        if step := _STEP.search(line.text):
            self._step = float(step[1])
            self.open = True
        else:
            super().read(line)
            self._step = self._step if self.open else None

    def found(self, before: str, values: Values, line: Line) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        if is_metrics(values) or any("/" in name for name in values):
            self.add({"trainer/global_step": step, **values}, line, "step", step)
        else:
            self.almost = self.almost or line
