"""What to do about a finding: the setting to change, the cheapest look, what to log next time, and what that costs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlvr_debug.causes import is_checked
from rlvr_debug.causes.base import Times
from rlvr_debug.causes.check import Check
from rlvr_debug.diagnosis.checks import Finding
from rlvr_debug.logs.log import Log, logged_as
from rlvr_debug.logs.names import (
    argument_name,
    argument_value,
    framework_of,
    names_of,
    quantities,
    shown_by,
)

_HOUR, _MINUTE = 3600.0, 60.0
_SHORT_RUN = 30  # steps in which a setting that mends a run shows
_CHECKED = 3
_ASKED = 3
# what TRL logs only with a setting
_WITH = {
    "kl": "kl (beta above 0)",
    "heldout": 'eval_reward (eval_strategy="steps")',
    "completions": "completions (log_completions=True)",
    "sampler_gap": "the sampler's log-probabilities (use_vllm=True)",
    "sampler_ratio": "the sampler's log-probabilities (use_vllm=True)",
}
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
        each = None if self.seconds is None else self.seconds * max(self.gpus, 1)
        return None if each is None else self.steps * each / _HOUR

    @property
    def unit(self) -> str:
        return "GPU-hours" if self.gpus else "CPU-hours"

    def text(self, count: int) -> str:
        """What `count` such runs cost."""
        times = f"{count} runs of this length" if count != 1 else "1 run of this length"
        if self.hours is None:
            return f"{times} (no seconds per step are logged: multiples of one run)"
        return f"{count * self.hours:.2g} {self.unit} ({times})"

    def steps_text(self, count: int) -> str:
        """How long `count` steps take."""
        if self.seconds is None:
            return f"{count} steps"
        took = count * self.seconds
        units = ((_HOUR, "h"), (_MINUTE, "min"), (1.0, "s"))
        size, unit = next((u for u in units if took >= u[0]), units[-1])
        return f"{count} steps, about {max(1, round(took / size))} {unit}"


@dataclass(frozen=True)
class Next:
    """The cheapest look at a cause, and what it costs."""

    what: str
    cost: str


def timing_of(log: Log, gpus: int) -> Timing:
    """gpus: that the run had; 0 for a run on processors, each of which is counted as one."""
    table = log.steps
    steps = max(round(float(table.index[-1])), len(table)) if len(table) else 0
    steps = min(steps, 10**9)
    each, since = log.series("seconds"), log.series("run_seconds")
    seconds, source = None, "nothing that was logged"
    if each.size:
        # where a row stands for several steps it may have their sum or their mean: the mean is what TRL logs
        seconds, source = float(np.median(each)), f"the median of {log.sources['seconds']}"
    elif since.size >= 3 and (np.diff(since) > 0).all():
        known = table["run_seconds"].dropna()
        rates = np.diff(known.to_numpy()) / np.diff(known.index.to_numpy(dtype=float))
        seconds, source = float(np.median(rates)), f"differences of {log.sources['run_seconds']}"
    elif since.size and steps:
        seconds, source = float(since.max()) / steps, log.sources["run_seconds"]
    return Timing(steps, seconds, source, gpus)


def with_names(text: str, log: Log) -> str:
    """Return a text whose settings, in backquotes, have the names of the log's trainer."""
    framework = framework_of(log.sources)
    return re.sub(r"`(\w+)`", lambda name: f"`{argument_name(name[1], framework)}`", text)


def change_of(check: Check, log: Log) -> str:
    """Return which setting to change, from its value to one to try; "" where none is known to mend it, or it is so already."""
    for name, wanted in check.change.items():
        now = _value(name, log)
        tried = "" if wanted is None else _short(wanted)
        if isinstance(wanted, Times):
            is_number = isinstance(now, int | float) and not isinstance(now, bool)
            tried = _short(now * wanted.times) if is_number else f"{wanted.times:g} times as much"
        if tried != str(now):
            shown = argument_name(name, framework_of(log.sources))
            return f"{shown}{'' if now is None else f', now {_short(now)}'}{tried and f': try {tried}'}"
    return ""


def _value(name: str, log: Log) -> Any:
    """Return a setting's value, or what the log shows of it."""
    if (value := argument_value(log.settings, name)) is not None:
        return value
    quantity, where = shown_by(name)
    values = log.series(quantity)
    known = values.size and not (where and log.series(where).max(initial=0) <= 0)
    return float(values.max()) if known else None


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def next_of(check: Check, change: str, clock: Timing, log: Log) -> Next:
    """Return the cheapest look at what a check found."""
    if check.next == "read":
        if log.completions.empty:
            wanted = "the completions of two steps (TRL: log_completions=True)"
            return Next(f"log {wanted} and read them", "")
        return Next(f"rlvr-debug diagnose {log.place} --html page.html", "shows the rollouts")
    if change and ": try " in change:
        short = min(_SHORT_RUN, clock.steps or _SHORT_RUN)
        return Next("the same run with that", clock.steps_text(short))
    if is_checked(check.slug):
        return Next("rlvr-debug check train.py", clock.steps_text(_CHECKED))
    return Next(f"rlvr-debug diagnose {log.place} --overlay-out mine.yaml", "writes its study")


def to_log(findings: Sequence[Finding], log: Log) -> tuple[str, ...]:
    """Return what the log's trainer could log and did not, first what most checks wait for; at most three."""
    framework = framework_of(log.sources)
    counts: Counter[str] = Counter()
    for each in findings:
        ways = [tuple(n for n in names if not log.has(n)) for names in each.check.needs]
        if each.status == "unchecked" and all(ways):
            can = [way for way in ways if all(_can_log(n, framework, log) for n in way)]
            for name in min(can, key=len, default=()):
                counts["completions" if name.startswith("completions") else name] += 1
    known = _WITH if framework == "trl" else {}
    names = [known.get(n) or logged_as(n, framework) for n, _ in counts.most_common()]
    return tuple(dict.fromkeys(names))[:_ASKED]


def _can_log(name: str, framework: str, log: Log) -> bool:
    """Return whether a trainer can log it in this run."""
    without_engine = argument_value(log.settings, "use_vllm") is False
    if framework == "trl" and without_engine and "use_vllm" in _WITH.get(name, ""):
        return False
    if name in log.rounded:
        return False
    if name in _NEVER or name.startswith("completions"):
        return framework == "trl" and name not in _NEVER
    return name in quantities() and framework in names_of(name)
