"""The hypotheses worth an experiment, most likely first, each with its reason and its next experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlvr_debug.causes import hypothesis_names, is_checked, load_hypothesis
from rlvr_debug.causes.check import LARGE, MILD, STOPS, UNSEEN, trend
from rlvr_debug.causes.sampler_gap import gap
from rlvr_debug.diagnosis.checks import Finding, run_checks
from rlvr_debug.logs.log import Log, logged_as, read_log
from rlvr_debug.logs.names import framework_of

__all__ = [
    "Diagnosis",
    "Next",
    "Ranked",
    "Suspect",
    "Timing",
    "diagnose",
    "diagnose_log",
    "reward_rises",
    "suspects",
]

_Z = 3.0
_RISE = 0.05
_CEILING = 0.95
# shares of a gap between two rows that a run was interrupted in are not counted: the median is
_SECONDS_OF_A_RUN = 3600.0


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
        return None if self.seconds is None else self._hours(self.steps * self.seconds)

    def _hours(self, seconds: float) -> float:
        return seconds * max(self.gpus, 1) / _SECONDS_OF_A_RUN

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
        """What `count` steps cost."""
        if self.seconds is None:
            return f"{count} steps"
        return f"{self._hours(count * self.seconds):.2g} {self.unit} ({count} steps)"


@dataclass(frozen=True)
class Next:
    """The cheapest experiment, a check of a few steps or a study, and what it costs."""

    what: str
    cost: str


@dataclass(frozen=True)
class Suspect:
    """A hypothesis that a log speaks for. strength: as a check has it; checks: those that do, the strongest first.

    refuted_by: what the user would see if it were not so; "" of what no check says.
    """

    slug: str
    strength: int
    reason: str
    checks: tuple[str, ...]
    refuted_by: str


@dataclass(frozen=True)
class Ranked(Suspect):
    """A suspect, and the cheapest experiment about it."""

    next: Next


@dataclass(frozen=True)
class Diagnosis:
    """ranked: worth an experiment, most likely first; learns: whether the training reward rises (None: too
    few rows); unseen: of the hypotheses that are not ranked, those that nothing logged speaks about."""

    log: Log
    findings: tuple[Finding, ...]
    ranked: tuple[Ranked, ...]
    learns: bool | None
    unseen: tuple[str, ...]
    timing: Timing
    notes: tuple[str, ...]


def diagnose(path: Path, gpus: int = 1, run: str = "") -> Diagnosis:
    """Of a log file or folder. Raises InputError for what is not a log. run: which one of an export of several."""
    return diagnose_log(read_log(path, run), gpus)


def diagnose_log(log: Log, gpus: int = 1) -> Diagnosis:
    findings = run_checks(log)
    learns = reward_rises(log)
    clock = _timing(log, gpus)
    ranked = tuple(
        Ranked(**vars(each), next=_next(each.slug, clock, log))
        for each in _suspects(findings, learns, _at_ceiling(log))
    )
    spoken = {each.check.slug for each in findings if each.status != "unchecked"}
    named = {each.slug for each in ranked}
    unseen = tuple(s for s in hypothesis_names() if s not in spoken and s not in named)
    return Diagnosis(
        log, tuple(findings), ranked, learns, unseen, clock, tuple(_notes(log, learns))
    )


def suspects(log: Log) -> list[Suspect]:
    """Return the hypotheses that the log speaks for, most likely first: a diagnosis without what comes next."""
    return _suspects(run_checks(log), reward_rises(log), _at_ceiling(log))


def reward_rises(log: Log) -> bool | None:
    """Return whether the training reward rises by 5 % of its size: 3 standard errors between the first and last third; or,
    for a run that learns within a few rows, three deviations of the last third above the first two rows. None for too few
    rows.
    """
    rewards = log.series("reward")
    found = trend(rewards)
    if found is None:
        return None
    start, late = rewards[:2], rewards[-(rewards.size // 3) :]
    quick = late.mean() - start.mean()
    if quick >= max(_Z * late.std(), _RISE * abs(late.mean())) and late.min() > start.max():
        return True
    scale = max(abs(found.first), abs(found.last))
    return found.z >= _Z and found.change >= _RISE * scale


def _at_ceiling(log: Log) -> bool:
    """Whether there is next to nothing left to gain, of a reward that is a share."""
    found = trend(log.series("reward"))
    return found is not None and found.first >= _CEILING and log.series("reward").max() <= 1


def _suspects(findings: Sequence[Finding], learns: bool | None, ceiling: bool) -> list[Suspect]:
    """Return them, most likely first. A finding that follows from another one speaks for nothing."""
    speaking = sorted(
        (each for each in findings if each.status == "found" and not each.explained_by),
        key=lambda each: (-each.shown.strength, -each.shown.amount, each.check.order),
    )
    by_slug: dict[str, list[Finding]] = {}
    for each in speaking:
        by_slug.setdefault(each.check.slug, []).append(each)
    found = [
        Suspect(
            slug,
            each[0].shown.strength,
            each[0].shown.sentence,
            tuple(f.check.name for f in each),
            each[0].check.refuted_by,
        )
        for slug, each in by_slug.items()
        if each[0].shown.strength >= MILD
    ]
    # what stops learning by itself explains all of it; anything less may be a symptom of what no log shows, as
    # an exploding KL was in the run that this project began with
    if learns is False and not ceiling and not any(each.strength == STOPS for each in found):
        # what was measured and found sound is not suspected of it
        sound = {f.check.slug for f in findings if f.status == "fine" and f.check.clears}
        slugs = (slug for slug in hypothesis_names() if slug not in sound and slug not in by_slug)
        unseen = [(slug, told) for slug in slugs if (told := load_hypothesis(slug).unseen)]
        # first what fits a flat reward beside healthy metrics best
        unseen.sort(key=lambda pair: pair[1].rank)
        found += [Suspect(slug, UNSEEN, told.why, (), "") for slug, told in unseen]
    # a mild finding beside a reward that rises is no reason for an experiment, but is shown
    return [each for each in found if each.strength >= LARGE or learns is not True]


def _next(slug: str, clock: Timing, log: Log) -> Next:
    if not is_checked(slug):
        return Next(f"the study of {slug} alone", f"{clock.text(1)} for each of its trainings")
    what = "rlvr-debug check, your trainer's first steps computed again (docs/check.md)"
    if load_hypothesis(slug).by_sampler and gap(log) is None:
        name = logged_as("sampler_gap", framework_of(log.sources))
        what = f"log {name} for two steps, or {what}"
    return Next(what, clock.steps_text(3))


def _timing(log: Log, gpus: int) -> Timing:
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


def _notes(log: Log, learns: bool | None) -> list[str]:
    notes = list(log.notes)
    losses = log.series("loss")
    if losses.size and abs(float(losses.mean())) < 1e-2:
        notes.append(
            "A loss of about 0 is evidence of nothing: with one update per batch and no KL the policy term is 0 by "
            "construction (TRL 3452)."
        )
    if learns is False and _at_ceiling(log):
        notes.append(
            "The reward begins at 95 % of 1 or more: there is next to nothing left to learn."
        )
    if learns is None:
        rows = log.series("reward").size
        notes.append(
            f"Whether the reward rises takes at least 9 rows with a reward; {rows} are logged."
        )
    return notes
