"""The hypotheses worth an experiment, most likely first, each with its reason and its next experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlvr_debug.causes import hypothesis_names, load_hypothesis
from rlvr_debug.causes.check import LARGE, MILD, STOPS, UNSEEN, trend
from rlvr_debug.causes.sampler_gap import gap
from rlvr_debug.diagnosis.checks import Finding, run_checks
from rlvr_debug.diagnosis.cost import Timing, timing
from rlvr_debug.diagnosis.overlay import overlay_text, params_of, write_overlay
from rlvr_debug.errors import InputError
from rlvr_debug.logs.log import Log, logged_as, read_log
from rlvr_debug.logs.names import framework_of
from rlvr_debug.replay.variants import segments_for
from rlvr_debug.study.arms import runs, unmapped
from rlvr_debug.study.model import Params

__all__ = [
    "Diagnosis",
    "Next",
    "Ranked",
    "Suspect",
    "diagnose",
    "diagnose_log",
    "reward_rises",
    "suspects",
    "write_study",
]

_Z = 3.0
_RISE = 0.05
_CEILING = 0.95


@dataclass(frozen=True)
class Next:
    """The cheapest experiment: a check of a few steps, or a study. runs: trainings of the study."""

    what: str
    cost: str
    runs: int
    study_cost: str


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


def diagnose(path: Path, gpus: int = 1, trainer: str = "trl") -> Diagnosis:
    """Of a log file or folder. Raises InputError for what is not a log."""
    return diagnose_log(read_log(path), gpus, trainer)


def diagnose_log(log: Log, gpus: int = 1, trainer: str = "trl") -> Diagnosis:
    findings = run_checks(log)
    learns = reward_rises(log)
    clock = timing(log, gpus)
    ranked = tuple(
        Ranked(
            **vars(each),
            next=_next(each.slug, params_of(overlay_text(log, [each.slug], trainer)), clock, log),
        )
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


def _next(slug: str, params: Params, clock: Timing, log: Log) -> Next:
    """params: of the study of this hypothesis alone."""
    trainings = list(runs(params))
    missing = unmapped(params).get(slug)
    if missing and not any(run.hypothesis == slug for run in trainings):
        count, study = 0, f"none as it is: {missing}"
    else:
        count = sum(run.arm == run.trained_as for run in trainings)  # others are told the same
        study = clock.text(count)
    hypothesis = load_hypothesis(slug)
    if not segments_for(slug):
        return Next(f"the study of {slug} alone", study, count, study)
    what = "rlvr-debug check, your trainer's first steps computed again (docs/check.md)"
    if hypothesis.by_sampler and gap(log) is None:
        name = logged_as("sampler_gap", framework_of(log.sources))
        what = f"log {name} for two steps, or {what}"
    return Next(what, clock.steps_text(3), count, study)


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


def write_study(found: Diagnosis, limit: int, trainer: str, out: Path) -> None:
    """The overlay that tests the first `limit` hypotheses, 0 for all that were ranked.

    Raises InputError where there are none, or where `out` is there already.
    """
    slugs = [each.slug for each in found.ranked[: limit or None]]
    if not slugs:
        raise InputError(f"{out}: nothing was ranked, expected a hypothesis to test")
    write_overlay(overlay_text(found.log, slugs, trainer), out)
