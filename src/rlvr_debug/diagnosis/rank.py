"""The causes that a log speaks for, most likely first, each with its reason and what comes next: the setting to change, the
cheapest look, what to log next time, and what that costs.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlvr_debug.causes import hypothesis_names, is_checked, load_hypothesis
from rlvr_debug.causes.base import Times
from rlvr_debug.causes.check import LARGE, STOPS, Check, late, trend
from rlvr_debug.causes.readings import DEAD
from rlvr_debug.diagnosis.checks import STANDS_OUT, Finding, likely_causes, run_checks
from rlvr_debug.diagnosis.evidence import rows_of
from rlvr_debug.logs.log import Array, Log, logged_as, read_log
from rlvr_debug.logs.names import ARGUMENTS, KNOWN, NAMES, argument_name, argument_value

_Z = 3.0
_RISE = 0.05
_OF_ROLLOUTS = 0.1
_CEILING = 0.95
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


@dataclass(frozen=True)
class Mean:
    """Of a third of the rewards, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Ranked:
    """A cause that a log speaks for, with what to do. findings: the strongest first; rows: where its reason stands in the log;
    change: a setting by its own name, with its value and one to try, "" where none would mend it; next: the cheapest look, cost: its.
    """

    slug: str
    probability: float
    findings: tuple[Finding, ...]
    rows: str
    refuted_by: str
    change: str
    next: str
    cost: str

    @property
    def strength(self) -> int:
        return self.findings[0].shown.strength

    @property
    def checks(self) -> tuple[str, ...]:
        return tuple(each.check.name for each in self.findings)

    @property
    def reason(self) -> str:
        return self.findings[0].shown.sentence


@dataclass(frozen=True)
class Diagnosis:
    """ranked: most likely first. learns: whether the training reward rises, None for too few rows. ends: means of its first and
    last third. unseen: causes that no log can show, where the reward does not rise and nothing stops it.
    """

    log: Log
    findings: tuple[Finding, ...]
    ranked: tuple[Ranked, ...]
    learns: bool | None
    ends: tuple[Mean, Mean] | None
    unseen: tuple[str, ...]
    timing: Timing
    notes: tuple[str, ...]

    @property
    def stands_out(self) -> bool:
        """Whether the first cause is more likely right than wrong."""
        return bool(self.ranked) and self.ranked[0].probability >= STANDS_OUT


def diagnose(path: Path, gpus: int = 1, run: str = "") -> Diagnosis:
    """Of a log file or folder. Raises InputError for what is not a log. run: which one of an export of several."""
    return diagnose_log(read_log(path, run), gpus)


def diagnose_log(log: Log, gpus: int = 1) -> Diagnosis:
    findings = run_checks(log)
    learns = reward_rises(log)
    clock = timing_of(log, gpus)
    ranked = _ranked(findings, learns, log, clock)
    rewards = log.series("reward")
    third = rewards.size // 3
    return Diagnosis(
        log,
        tuple(findings),
        tuple(ranked),
        learns,
        (_mean(rewards[:third]), _mean(rewards[-third:])) if third >= 2 else None,
        _unseen(ranked, findings, log) if learns is False else (),
        clock,
        tuple(_notes(log, learns, findings)),
    )


def _ranked(
    findings: Sequence[Finding], learns: bool | None, log: Log, clock: Timing
) -> list[Ranked]:
    """Return the causes, most likely first. Of a run that learns only what stands out, and does not starve it, is worth a look."""
    found = []
    for slug, likely, own in likely_causes(findings, learns):
        check = own[0].check
        stands_out = own[0].shown.strength >= LARGE and likely >= STANDS_OUT and not check.starves
        if stands_out or not learns:
            change, rows = _change_of(check, log), rows_of(own[0], log)
            after = _next_of(check, change, clock, log)
            refuted_by = _with_names(check.refuted_by, log)
            found.append(Ranked(slug, likely, tuple(own), rows, refuted_by, change, *after))
    return sorted(found, key=lambda each: -each.probability)


def _unseen(found: Sequence[Ranked], findings: Sequence[Finding], log: Log) -> tuple[str, ...]:
    """Return the causes that no log can show, first what fits a flat reward beside healthy metrics best."""
    if _at_ceiling(log) or any(each.strength == STOPS for each in found):
        return ()
    # what was measured and found sound is not suspected of it
    out = {f.check.slug for f in findings if f.status == "fine" and f.check.clears}
    out |= {each.slug for each in found}
    hypotheses = {slug: load_hypothesis(slug) for slug in hypothesis_names() if is_checked(slug)}
    ranks = {slug: each.unseen.rank for slug, each in hypotheses.items() if each.unseen}
    return tuple(sorted(ranks.keys() - out, key=lambda slug: ranks[slug]))


def _mean(values: Array) -> Mean:
    """Return the mean with Student's interval, his quantile by Cornish and Fisher's expansion."""
    free, value = values.size - 1, float(values.mean())
    quantile = 1.96 + 2.37 / free + 2.82 / free**2 + 2.56 / free**3
    half = quantile * float(values.std(ddof=1)) / values.size**0.5
    return Mean(value, value - half, value + half)


def reward_rises(log: Log) -> bool | None:
    """Return whether the training reward rises: by 3 standard errors between its thirds, and 5 % of its size or a tenth of what
    rollouts differ by; or, within a few rows, by three deviations of the last third. None for too few rows.
    """
    rewards = log.series("reward")
    if rewards.size < 9:
        return None
    found = trend(rewards)
    start, late = rewards[:2], rewards[-(rewards.size // 3) :]
    quick = late.mean() - start.mean()
    if quick >= max(_Z * late.std(), _RISE * abs(late.mean())) and late.min() > start.max():
        return True
    scale = max(abs(found.first), abs(found.last))
    deviations = log.series("reward_std")
    of_rollouts = float(np.median(deviations)) if deviations.size else np.inf
    return found.z >= _Z and found.change >= min(_RISE * scale, _OF_ROLLOUTS * of_rollouts)


def _at_ceiling(log: Log) -> bool:
    """Whether there is next to nothing left to gain, of a reward that is a share."""
    rewards = log.series("reward")
    return trend(rewards).first >= _CEILING and rewards.max() <= 1


def _notes(log: Log, learns: bool | None, findings: Sequence[Finding]) -> list[str]:
    notes = list(log.notes)
    fine = {each.check.name for each in findings if each.status == "fine"}
    if "dead-groups" in fine and late(log.series("dead_groups")) >= DEAD[STOPS]:
        notes.append("at the end nearly all groups earn equal rewards: no more is learned.")
    losses = log.series("loss")
    if losses.size and np.abs(losses).mean() < 1e-3 and "loss" not in log.nonfinite:
        but = ", but for the KL" if log.has("kl") else ""
        notes.append(
            f"a loss near 0 is harmless: with one update per batch it is 0 by construction{but}."
        )
    if learns is False and _at_ceiling(log):
        notes.append("the reward begins at 95 % of 1 or more: next to nothing is left to learn.")
    return notes


# --- what to do about it


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


def _with_names(text: str, log: Log) -> str:
    """Return a text whose settings, in backquotes, have the names of the log's trainer."""
    return re.sub(r"`(\w+)`", lambda name: f"`{argument_name(name[1], log.framework)}`", text)


def settings_of(log: Log) -> dict[str, Any]:
    """Return the run's settings that an answer may name, by the log's trainer's names."""
    given = {name: argument_value(log.settings, name) for name in ARGUMENTS}
    known = {name: value for name, value in given.items() if value is not None}
    return {argument_name(name, log.framework): value for name, value in known.items()}


def _change_of(check: Check, log: Log) -> str:
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


def _next_of(check: Check, change: str, clock: Timing, log: Log) -> tuple[str, str]:
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
    if name in log.rounded or name in _NEVER:
        return False
    return of_trl if name.startswith("completions") else log.framework in NAMES.get(name, ())
