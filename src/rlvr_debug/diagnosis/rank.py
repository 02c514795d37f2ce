"""The causes that a log speaks for, most likely first, each with its reason and what comes next."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlvr_debug.causes import hypothesis_names, is_checked, load_hypothesis
from rlvr_debug.causes.check import LARGE, STOPS, late, trend, with_names
from rlvr_debug.causes.readings import DEAD
from rlvr_debug.diagnosis.advice import Timing, change_of, next_of, timing_of
from rlvr_debug.diagnosis.checks import STANDS_OUT, Finding, likely_causes, run_checks
from rlvr_debug.diagnosis.evidence import rows_of
from rlvr_debug.logs.log import Array, Log, read_log

_Z = 3.0
_RISE = 0.05
_OF_ROLLOUTS = 0.1
_CEILING = 0.95


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
            change, rows = change_of(check, log), rows_of(own[0], log)
            after = next_of(check, change, clock, log)
            refuted_by = with_names(check.refuted_by, log)
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
    found = trend(rewards)
    if found is None:
        return None
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
    found = trend(log.series("reward"))
    return found is not None and found.first >= _CEILING and log.series("reward").max() <= 1


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
