"""What to do about a finding: the setting to change, the cheapest look, what to log next time, and what that costs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlvr_debug.causes import Times, is_checked
from rlvr_debug.causes.check import Check
from rlvr_debug.diagnosis.checks import Finding
from rlvr_debug.logs.log import Log, logged_as
from rlvr_debug.logs.names import ARGUMENTS, KNOWN, NAMES, argument_name, argument_value

_HOUR = 3600.0
_UNITS = ((_HOUR, "h"), (60.0, "min"), (0.0, "s"))
_SHORT_RUN = 30  # steps in which a setting that mends a run shows
_ASKED = 3
_WITH: Mapping[str, str] = KNOWN["with"]  # what TRL logs only with a setting
# what no setting adds to a log of TRL: it is there wherever there is something to log
_NEVER = {"tool_calls", "tool_failures", "parts"}


@dataclass(frozen=True)
class Timing:
    """Of the logged run: its steps, and seconds per step where they were logged, with their source."""

    steps: int
    seconds: float | None
    source: str
    gpus: int

    @property
    def hours(self) -> float | None:
        """GPU-hours of one such run; CPU-hours without a GPU."""
        if self.seconds is None:
            return None
        return self.steps * self.seconds * max(self.gpus, 1) / _HOUR

    @property
    def unit(self) -> str:
        return "GPU-hours" if self.gpus else "CPU-hours"

    def text(self, count: int) -> str:
        """What `count` such runs cost."""
        times = f"{count} run{'s'[: count != 1]} of this length"
        if self.hours is None:
            return f"{times} (no seconds per step are logged: multiples of one run)"
        return f"{count * self.hours:.2g} {self.unit} ({times})"

    def steps_text(self, count: int) -> str:
        if self.seconds is None:
            return f"{count} steps"
        took = count * self.seconds
        size, unit = next(each for each in _UNITS if took >= each[0])
        return f"{count} steps, about {max(1, round(took / (size or 1)))} {unit}"


def timing_of(log: Log, gpus: int) -> Timing:
    """gpus: that the run had; 0 for a run on processors, each of which is counted as one."""
    table = log.steps
    steps = min(max(round(float(table.index[-1])), len(table)), 10**9) if len(table) else 0
    each, since = log.series("seconds"), log.series("run_seconds")
    seconds, source = log.pace, "its progress bar" if log.pace else "nothing that was logged"
    if each.size:
        # where a row stands for several steps it may have their sum or their mean: the mean is what TRL logs
        seconds, source = float(np.median(each)), f"the median of {log.sources['seconds']}"
    elif since.size >= 3 and (np.diff(since) > 0).all():
        rates = np.diff(since) / np.diff(log.steps_of("run_seconds"))
        seconds, source = float(np.median(rates)), f"differences of {log.sources['run_seconds']}"
    elif since.size and steps:
        seconds, source = float(since.max()) / steps, log.sources["run_seconds"]
    return Timing(steps, seconds, source, gpus)


def settings_of(log: Log) -> dict[str, Any]:
    """Return the run's settings that an answer may name, by the log's trainer's names."""
    given = {name: argument_value(log.settings, name) for name in ARGUMENTS}
    known = {name: value for name, value in given.items() if value is not None}
    return {argument_name(name, log.framework): value for name, value in known.items()}


def change_of(check: Check, log: Log) -> str:
    """Return which setting to change, from its value to one to try; "" where none is known to mend it, or it is so already."""
    for name, wanted in check.change.items():
        now = _value(name, log)
        tried = "" if wanted is None else _short(wanted)
        if isinstance(wanted, Times):
            is_number = isinstance(now, int | float) and not isinstance(now, bool)
            tried = _short(now * wanted.times) if is_number else f"{wanted.times:g} times as much"
        if tried != str(now):
            shown = argument_name(name, log.framework)
            return f"{shown}{'' if now is None else f', now {_short(now)}'}{tried and f': try {tried}'}"
    return ""


def _value(name: str, log: Log) -> Any:
    """Return a setting's value, or what the log shows of it."""
    if (value := argument_value(log.settings, name)) is not None:
        return value
    shows, where = (str(ARGUMENTS.get(name, {}).get(key, "")) for key in ("shows", "where"))
    values = log.series(shows)
    known = values.size and not (where and log.series(where).max(initial=0) <= 0)
    return float(values.max()) if known else None


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def next_of(check: Check, change: str, clock: Timing, log: Log) -> tuple[str, str]:
    """Return the cheapest look at a cause, and what it costs."""
    if check.next == "read":
        if log.completions.empty:
            wanted = "the completions of two steps (TRL: log_completions=True)"
            return f"log {wanted} and read them", ""
        return f"rlvr-debug diagnose {log.place} --html page.html", "shows the rollouts"
    if change and ": try " in change:
        short = min(_SHORT_RUN, clock.steps or _SHORT_RUN)
        return "the same run with that change", clock.steps_text(short)
    if is_checked(check.slug):
        return "rlvr-debug check train.py", "3 steps and about a minute"
    return f"rlvr-debug diagnose {log.place} --overlay-out mine.yaml", "writes its study"


def to_log(findings: Sequence[Finding], log: Log) -> tuple[str, ...]:
    """Return what the log's trainer could log and did not, first what most checks wait for; at most three, none where it has no steps."""
    if log.steps.empty:
        return ()
    counts: Counter[str] = Counter()
    for each in findings:
        ways = [tuple(n for n in names if not log.has(n)) for names in each.check.needs]
        if each.status == "unchecked" and all(ways):
            can = [way for way in ways if all(_can_log(n, log) for n in way)]
            for name in min(can, key=len, default=()):
                counts["completions" if name.startswith("completions") else name] += 1
    known = _WITH if log.framework == "trl" else {}
    names = [known.get(n) or logged_as(n, log.framework) for n, _ in counts.most_common()]
    return tuple(dict.fromkeys(names))[:_ASKED]


def _can_log(name: str, log: Log) -> bool:
    of_trl = log.framework == "trl"
    without_engine = argument_value(log.settings, "use_vllm") is False
    if of_trl and without_engine and "use_vllm" in _WITH.get(name, ""):
        return False
    if name in log.rounded or name in _NEVER or name.startswith("argument"):
        return False
    return of_trl if name.startswith("completions") else log.framework in NAMES.get(name, ())
