"""slime's console (0.3.1, observability/ and backends/megatron_utils/model.py): `rollout 3: {…}`, `perf`, `eval`, and `step` of the optimizer."""

import re

from rlvr_debug.logs.console import Dictionaries, Line, Values

_KIND = re.compile(r"\b(rollout|perf|eval|step|passrate) (\d+): $")


class Console(Dictionaries):
    """An optimizer's steps are counted by themselves: their rows are of the rollout before them."""

    name = "slime's console"
    marks = (b": {'",)
    _rollout: float | None = None

    def found(self, before: str, values: Values, line: Line) -> None:
        kind = _KIND.search(before)
        if not kind or not any("/" in name for name in values):
            return
        at = float(kind[2])
        if kind[1] in ("rollout", "perf"):
            self._rollout = at
        values.pop("train/step", None)
        own = at if kind[1] != "step" or self._rollout is None else self._rollout
        # an evaluation may end late
        order = None if kind[1] == "eval" else own
        self.add({**values, "rollout/step": own}, line, kind[1], order)
