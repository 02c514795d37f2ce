"""NeMo-RL's console (0.6.0, algorithms/grpo.py): `=== Step 3/100 ===`, then figures behind bullets, of training, timing and validation."""

import re

from rlvr_debug.logs.console import NUMBER, Line, Reader
from rlvr_debug.logs.names import KNOWN

_STEP = re.compile(r"={5,} Step (\d+)/\d+ ={5,}")
_FIGURE = re.compile(rf"\s*• (?P<label>[^:]+): (?P<value>{NUMBER})(?:s| tokens)?(?:\s.*)?$")
_NAMES = KNOWN["labels"]["nemo-rl"]


class Console(Reader):
    name = "NeMo-RL's console"
    marks = ("•".encode(), b"Step")
    _step: float | None = None
    _begun = False

    def read(self, line: Line) -> None:
        if step := _STEP.search(line.text):
            self._step, self._begun = float(step[1]), False
        elif figure := _FIGURE.match(line.text):
            name, value = _NAMES.get(figure["label"]), float(figure["value"])
            if name and self._step is None:
                self.almost = self.almost or line
            elif name and self._begun:
                self.join({name: value}, line)
            elif name and self._step is not None:
                self.add({"step": self._step, name: value}, line, "step", self._step)
                self._begun = True
