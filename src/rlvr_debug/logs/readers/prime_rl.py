"""prime-rl's console (0.8.1.dev67, orchestrator/orchestrator.py and trainer/rl/train.py): `Step 3 | 12s | Reward 0.41 | …`, and loops that print so."""

import re

from rlvr_debug.logs.console import NUMBER, Line, Reader, Values, is_metrics
from rlvr_debug.logs.names import KNOWN

_STEP = re.compile(r"\b[Ss]tep:? (\d+)(?:/\d+)? \| (.*)")
_EVALUATED = re.compile(rf"\bEvaluated (\S+) \(Step (\d+)\).*?\bReward ({NUMBER})")
# up to 0.5 a colon follows the label
_CELL = re.compile(rf"\s*(?P<label>[A-Za-z][\w./ -]*?):? (?P<value>{NUMBER})(?P<unit>%?)(?:\s.*)?")
_TIME = re.compile(r"\s*(?:Time:? )?((?:[\d.]+(?:ms|[dhms])\s*)+)")
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_NAMES = KNOWN["labels"]["prime-rl"]


class Console(Reader):
    name = "prime-rl's console"
    marks = (b"Step", b"step", b"Evaluated")

    def read(self, line: Line) -> None:
        if evaluated := _EVALUATED.search(line.text):
            name = f"eval/{evaluated[1]}/all/all/avg@1"
            self.add({"step": float(evaluated[2]), name: float(evaluated[3])}, line)
        elif step_line := _STEP.search(line.text):
            self._step(float(step_line[1]), step_line[2].split(" | "), line)

    def _step(self, step: float, cells: list[str], line: Line) -> None:
        values: Values = {}
        for cell in cells:
            if time := _TIME.fullmatch(cell):
                parts = re.findall(r"([\d.]+)(ms|[dhms])", time[1])
                values["time/step"] = sum(float(n) * _UNITS[unit] for n, unit in parts)
            elif match := _CELL.fullmatch(cell):
                number = float(match["value"]) / (100 if match["unit"] else 1)
                values[_NAMES.get(match["label"], match["label"])] = number
        if is_metrics(values):
            # the trainer and what samples print to files of their own, which some join
            order = "sampling" if "reward/all/mean" in values else "training"
            self.add({"step": step, **values}, line, order, step)
        else:
            self.almost = self.almost or line
