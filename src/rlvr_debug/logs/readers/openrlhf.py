"""OpenRLHF's console (0.11.0, trainer/ppo_trainer.py and ray/ppo_actor.py): `Global step 3: {…}`, else the postfix of `Train epoch` bars."""

from __future__ import annotations

import re

from rlvr_debug.logs.console import NUMBER, Dictionaries, Line, Values, is_metrics

_STEP = re.compile(r"[Gg]lobal[ _]step:? (\d+)")
_BAR = re.compile(
    r"Train epoch \[(\d+)/\d+\].{0,300}?\b(\d+)/(\d+) \[[^\]]{0,99}?, (\w+=[^\]]{0,2000})\]"
)
_PAIR = re.compile(rf"(\w+)=({NUMBER})")
# of a bar, and of the bar of 0.2 to 0.8: as its loggers call them
_NAMES = {
    "act_loss": "policy_loss",
    "gen_len": "response_length",
    "tot_len": "total_length",
    "act_lr": "actor_lr",
    "grad_norm": "actor_grad_norm",
    "ent_loss": "entropy_loss",
    "pg": "policy_loss",
    "rm": "reward",
    "ret": "return",
    "glen": "response_length",
}


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
            named = {
                name if name.startswith("eval") else f"eval/{name}": values[name] for name in values
            }
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
