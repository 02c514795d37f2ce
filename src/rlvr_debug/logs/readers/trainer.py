"""Dictionaries that transformers' Trainer prints (5.19, trainer_callback.py), and with it TRL, ms-swift, open-r1, unsloth, verifiers."""

import re
from collections.abc import Sequence

from rlvr_debug.logs.console import Dictionaries, Line, Values, is_metrics

_BAR = re.compile(rb"\b\d+/\d+(?= \[)")
_STEP = re.compile(r"\b(?:global[ _])?step[ :=#]*(\d+)\b[^{]{0,80}$", re.IGNORECASE)
# where ms-swift has it; a progress bar's is put there, too
_OF = "global_step/max_steps"


class Console(Dictionaries):
    """Rows have no step: it is that of the progress bar before, where all rows have one of the same length."""

    name = "dictionaries of TRL and transformers' Trainer"
    marks = (b"loss", b"reward", b"_runtime")
    shared = True
    by_bar = False

    def found(self, before: str, values: Values, line: Line) -> None:
        if "train_runtime" in values:
            self.join({"train_runtime": values["train_runtime"]}, line)
        elif any(name.startswith("eval_") for name in values) and not {"loss", "reward"} & {
            *values
        }:
            self.join({name: values[name] for name in values if name.startswith("eval_")}, line)
        elif not is_metrics(values):
            self.almost = self.almost or line
        else:
            self._row(before, values, line)

    def _row(self, before: str, values: Values, line: Line) -> None:
        if bars := _BAR.findall(line.before + before.encode()):
            self.by_bar |= _OF not in values
            values.setdefault(_OF, bars[-1].decode())
        if (step := _STEP.search(before)) and "step" not in values:
            values["step"] = float(step[1])
        order = "step" if "step" in values else "epoch"
        at = values.get(order)
        self.add(values, line, order, at if isinstance(at, float) else None)

    def finish(self, rows: Sequence[Values]) -> None:
        bars = [str(row.pop(_OF, "/")).split("/") for row in rows]
        steps = [float(step or 0) for step, _ in bars]
        lengths = {length for _, length in bars} - {""}
        if len(lengths) == 1 and steps == sorted({*steps}):
            self.planned = int(lengths.pop())
            # nothing is logged before step 1: such a bar is drawn after its row
            late = float(self.by_bar and steps[0] == 0)
            for row, step in zip(rows, steps, strict=True):
                row.setdefault("step", step + late)
