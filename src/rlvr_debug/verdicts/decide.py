"""From runs and probes to one verdict per hypothesis. The rule is the same for every hypothesis.

The unit is a run's held-out mean on questions that all runs share. An effect is a difference of mean
gain in held-out reward over seeds, with Welch's t interval:
- repair: the case with one part mended, minus the case. It finds a cause that acts by itself.
- alone: the control minus the control with that part as in the case. It finds a cause that another
  defect hides: with two defects of which each is enough to stop learning, mending one changes nothing.

An effect is significant when it is above 0 and its p value, after Holm's correction over all
intervention arms of causes that change anything, is below alpha; it is equivalent to 0 when two one-sided tests at alpha
place it within the minimum effect, and the greedy effect is within it too. The control, which mends
everything, and the arms of localisers are judged apart. A cause is
- validated when its mechanism is present and an arm's effect is significant and at least the minimum
  effect, sampled and greedy;
- partially validated when its mechanism is present without effect on the goal: every arm's effect is
  equivalent to 0, or one is significant but smaller than the minimum, or large only when sampled;
- invalidated when every arm's effect is equivalent to 0, or when its mechanism is shown absent;
- not applicable when the case lacks its precondition, its mechanism is not there, and its arms change nothing;
- inconclusive otherwise: where its mechanism is present and its arms change nothing about the case, as
  what the check found may be a symptom of something else; with the number of further seeds that would decide if effects and spreads
  stayed as observed, and with the hypotheses that the same interventions mend. So is a significant
  effect of at least the minimum without its mechanism, which is a contradiction, and whatever one
  seed says.

Mending that makes things worse validates nothing and clears nothing. The arrays are in rule.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, nan
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rlvr_debug.causes import load_hypothesis
from rlvr_debug.causes.base import Hypothesis
from rlvr_debug.replay.mechanism import mechanism_of
from rlvr_debug.verdicts.rule import (
    ABSENT,
    PRESENT,
    UNTESTED,
    Effects,
    Measured,
    arm_status,
    compare,
    learns,
    status,
)
from rlvr_debug.verdicts.statistics import Sample, mean_estimate, sample, welch
from rlvr_debug.verdicts.symptoms import borrowed

__all__ = [
    "Evidence",
    "Verdict",
    "arm_table",
    "decide",
    "observations",
    "observed",
]

_TOTALS = np.arange(2, 101)  # seeds per arm that are tried
_BETWEEN = "; "  # two observations of a verdict's evidence
# of Mechanism.present: for the rule, and as verdicts.csv says it
_MECHANISMS = {True: PRESENT, None: UNTESTED, False: ABSENT}
_SEEN = {True: "present", None: "not tested", False: "absent"}
# what a cause's verdict has from the row of its strongest arm
_OF_ARM = ("arm", "seeds", "effect", "ci_low", "ci_high", "effect_greedy", "p_holm", "effect_in_sd")
_RISING = ("invalidated", "inconclusive", "partially_validated", "validated")  # statuses of an arm


@dataclass(frozen=True)
class Evidence:
    """check: what the check says of the case, as JSON (replay/answer.py); arms: one row per arm, as arm_table returns them; runs: as
    runs.csv, for the figures that a hypothesis takes for its symptom; training: the case's settings, for
    preconditions."""

    check: Mapping[str, Any]
    arms: pd.DataFrame
    runs: pd.DataFrame = field(default_factory=pd.DataFrame)
    training: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """One row of verdicts.csv. Effects are in held-out reward, [0, 1], at the training temperature;
    those of `arm`, the one that says most.

    effect_in_sd: shown, never decisive. further_seeds: per arm, of an inconclusive cause; inf where no
    number up to 100 in all decides.
    """

    hypothesis: str
    kind: str
    status: str
    confidence: str
    effect: float = nan
    ci_low: float = nan
    ci_high: float = nan
    seeds: int = 0
    evidence: str = "no arm was run"
    arm: str = ""
    effect_greedy: float = nan
    p_holm: float = nan
    mechanism: str = "not tested"
    effect_in_sd: float = nan
    further_seeds: float = nan


def arm_table(runs: pd.DataFrame, main: str, alpha: float, minimum_effect: float) -> pd.DataFrame:
    """One row per arm: its gain over the baseline and, in the main environment, its effect.

    runs: as runs.csv, one row per arm and seed. The control's effect is that of mending everything.
    """
    by_arm = {str(arm): group for arm, group in runs.groupby("arm", sort=False)}
    arms = pd.DataFrame([_gains(group, alpha) for group in by_arm.values()])
    causes = _interventions(arms)
    compared = ~arms["design"].isin(["case", "random_reward"]) & (arms["environment"] == main)
    tested = arms.loc[compared, "arm"]
    rows: list[dict[str, Any]] = []
    for family in [causes, *([arm] for arm in tested if arm not in causes)]:
        if not family:
            continue
        effects, at_totals = _effects(arms, family, alpha, minimum_effect)
        now, later = arm_status(effects), arm_status(at_totals)
        for n, (better, worse) in enumerate(_sides(arms, family)):
            sampled, greedy = (
                welch(by_arm[better][gain], by_arm[worse][gain], alpha)
                for gain in ("gain", "gain_greedy")
            )
            seeds = len(by_arm[family[n]])
            rows.append(
                {
                    "arm": family[n],
                    "effect": float(effects.effect[n]),
                    "ci_low": float(sampled.low),
                    "ci_high": float(sampled.high),
                    "p": float(effects.p[n]),
                    "effect_greedy": float(effects.effect_greedy[n]),
                    "greedy_low": float(greedy.low),
                    "greedy_high": float(greedy.high),
                    "p_holm": float(effects.p_holm[n]),
                    "status": str(now[n]),
                    "p_equivalence": float(effects.p_equivalence[n]),
                    "effect_in_sd": float(effects.in_sd[n]),
                    "further_seeds": _further_seeds(str(now[n]), later[:, n], seeds),
                }
            )
    return arms.merge(pd.DataFrame(rows), on="arm", how="left") if rows else arms


def _gains(group: pd.DataFrame, alpha: float) -> dict[str, Any]:
    """group: the runs of one arm."""
    gain = mean_estimate(group["gain"], alpha)
    sampled, greedy = sample(group["gain"]), sample(group["gain_greedy"])
    return {
        **{
            name: group[name].iloc[0]
            for name in ("arm", "design", "hypothesis", "environment", "changes")
        },
        "seeds": len(group),
        "gain": float(gain.value),
        "gain_low": float(gain.low),
        "gain_high": float(gain.high),
        "gain_sd": float(sampled.sd),
        "gain_greedy": float(greedy.mean),
        "gain_greedy_sd": float(greedy.sd),
    }


def _interventions(arms: pd.DataFrame) -> list[str]:
    """The arms that are corrected together. Elsewhere than the case they have no effect to test."""
    main = arms.loc[arms["design"] == "case", "environment"]
    return [
        row["arm"]
        for row in arms.to_dict("records")
        if row["design"] in ("repair", "alone")
        and row["environment"] in set(main)
        and load_hypothesis(row["hypothesis"]).kind == "cause"
    ]


def _sides(arms: pd.DataFrame, names: Sequence[str]) -> list[tuple[str, str]]:
    """Of each arm, which two to compare: a cause makes the first one better."""
    designs = arms.set_index("arm")["design"]
    return [("control", arm) if designs[arm] == "alone" else (arm, "case") for arm in names]


def _effects(
    arms: pd.DataFrame, names: Sequence[str], alpha: float, minimum_effect: float
) -> tuple[Effects, Effects]:
    """Effects of these arms, corrected together: as measured, and had each arm had _TOTALS seeds, (totals, arms)."""
    by_arm = arms.set_index("arm")
    tests = (by_arm.loc[list(names), "changes"] != "").to_numpy()

    def measured(side: Sequence[str], seeds: NDArray[np.int64] | None) -> Measured:
        rows = by_arm.loc[list(side)]
        count = rows["seeds"].to_numpy() if seeds is None else seeds
        sampled, greedy = (
            Sample(rows[gain].to_numpy(float), rows[f"{gain}_sd"].to_numpy(float), count)
            for gain in ("gain", "gain_greedy")
        )
        return Measured(sampled, greedy)

    better, worse = zip(*_sides(arms, names), strict=True)
    now, later = (
        compare(measured(better, seeds), measured(worse, seeds), alpha, minimum_effect, tests)
        for seeds in (None, _TOTALS[:, None])
    )
    return now, later


def _further_seeds(found: str, at_totals: NDArray[np.str_], seeds: int) -> float:
    """Seeds per arm until an inconclusive status settles. at_totals: the status at _TOTALS seeds."""
    if found != "inconclusive" or seeds < 2:  # decided, or of unknown spread
        return nan
    enough = _TOTALS[(at_totals != "inconclusive") & (seeds < _TOTALS)]
    return float(enough[0] - seeds) if enough.size else inf


def decide(
    slugs: Sequence[str], evidence: Evidence, alpha: float, minimum_effect: float
) -> list[Verdict]:
    """Return a verdict on each of these hypotheses."""
    return [
        _localise(hypothesis, evidence, minimum_effect)
        if hypothesis.kind == "localiser"
        else _judge(hypothesis, evidence, alpha, minimum_effect)
        for hypothesis in map(load_hypothesis, slugs)
    ]


def _judge(
    hypothesis: Hypothesis, evidence: Evidence, alpha: float, minimum_effect: float
) -> Verdict:
    seen = mechanism_of(hypothesis.slug, evidence.check)
    pending = _pending(hypothesis, mechanism=_SEEN[seen.present])
    arms = evidence.arms
    family = _interventions(arms)
    own = arms[arms["arm"].isin(family) & (arms["hypothesis"] == hypothesis.slug)]
    if own.empty:
        return pending
    members = [family.index(arm) for arm in own["arm"]]
    now, later = (each.of(members) for each in _effects(arms, family, alpha, minimum_effect))
    mechanism = _MECHANISMS[seen.present]
    unseen = mechanism != PRESENT and not now.tested.any()
    if unseen and (lacking := _lacking(hypothesis, evidence.training)):
        why = _BETWEEN.join(filter(None, [lacking, seen.text]))
        return replace(pending, status="not_applicable", confidence="none", evidence=why)
    found = str(status(now, mechanism))
    further = _further_seeds(found, status(later, mechanism), own["seeds"].min())
    rows = own.to_dict("records")
    best = max(rows, key=lambda arm: (_RISING.index(arm["status"]), arm["effect"]))
    planting = {arm.name for arm in hypothesis.arms if arm.faults}
    said = [*(_sentence(arm, arm["arm"] in planting) for arm in rows), seen.text]
    if found == "inconclusive":
        said.append(_open(now, mechanism, further, minimum_effect))
    if rivals := _same_interventions(own, arms[arms["arm"].isin(family)]):
        said.append(f"not to be told from {', '.join(rivals)}, which the same intervention mends")
    if other := borrowed(hypothesis, arms, evidence.runs):
        said.append(other)
    return replace(
        pending,
        **{name: best[name] for name in _OF_ARM},
        status=found,
        confidence=_confidence(found, now, mechanism, best["ci_low"], alpha, minimum_effect),
        evidence=_BETWEEN.join(said),
        further_seeds=further,
    )


def _lacking(hypothesis: Hypothesis, training: Mapping[str, Any]) -> str:
    """Return what the case lacks of the hypothesis' precondition; empty where it lacks nothing, or that is not known."""
    needed = hypothesis.precondition
    return needed.lacking if needed and training.get(needed.training) == 0 else ""


def _pending(hypothesis: Hypothesis, mechanism: str = "not tested") -> Verdict:
    """Return what is said while no arm was run."""
    return Verdict(hypothesis.slug, hypothesis.kind, "pending", "low", mechanism=mechanism)


def _open(effects: Effects, mechanism: int, further: float, minimum_effect: float) -> str:
    """Why a verdict is inconclusive."""
    if not effects.known.all():
        return "one seed has no spread: run more"
    if effects.gained.any():
        return (
            "an effect without its mechanism is a contradiction"
            if mechanism == ABSENT
            else "whether its mechanism is present was not tested"
        )
    if mechanism == PRESENT and not effects.tested.any():
        return (
            "its interventions change nothing about the case, so that what the check found may be a "
            "symptom of another cause"
        )
    if isfinite(further):
        return f"{further:.0f} further seeds would decide, were effects and spreads to stay"
    if (effects.effect <= -minimum_effect).any():
        return "mending makes it worse, which more seeds would not change"
    return f"more than {_TOTALS[-1]} seeds would be needed at the observed effects and spreads"


def _same_interventions(own: pd.DataFrame, arms: pd.DataFrame) -> list[str]:
    """Other hypotheses of which an arm changes exactly what one of these changes."""
    told = ["design", "changes"]
    changed = own.loc[own["changes"] != "", told]
    return sorted(set(arms.merge(changed, on=told)["hypothesis"]) - set(own["hypothesis"]))


def _confidence(
    found: str, effects: Effects, mechanism: int, low: float, alpha: float, minimum_effect: float
) -> str:
    """high: the test that decided would at a fifth of alpha too, and the interval of a validated effect
    lies beyond the minimum; or an effect equivalent to 0 and an absent mechanism agree. low:
    inconclusive. low (argument): the lower end of the strongest arm's interval."""
    if found == "inconclusive":
        return "low"
    if found == "validated":
        sure = effects.p_holm[effects.large].min() < alpha / 5 and low >= minimum_effect
    else:
        sure = effects.equivalent.all() and (
            mechanism == ABSENT or effects.p_equivalence.max() < alpha / 5
        )
    return "high" if sure else "medium"


def _sentence(arm: Mapping[Any, Any], planted: bool) -> str:
    """planted: whether the arm gives the case a fault."""
    what = "with this fault the case gains" if planted else "mending it in the case gains"
    if arm["design"] == "alone":
        what = "the control with only this defect loses"
    return (
        f"{arm['arm']}: {what} {arm['effect']:+.3f} [{arm['ci_low']:+.3f}, {arm['ci_high']:+.3f}], "
        f"greedy {arm['effect_greedy']:+.3f}, p {arm['p_holm']:.2g} (Holm), "
        f"p {arm['p_equivalence']:.2g} (equivalence)"
    )


def _localise(hypothesis: Hypothesis, evidence: Evidence, minimum_effect: float) -> Verdict:
    """The claim is that the simpler setting fails too or, of some, that it learns where the case does not, and where
    arms do that are nearer to the case: gains over the baseline decide."""
    own = evidence.arms[evidence.arms["hypothesis"] == hypothesis.slug]
    if own.empty:
        return _pending(hypothesis)
    [case] = evidence.arms[evidence.arms["design"] == "case"].to_dict("records")
    failing = {arm.name for arm in hypothesis.arms if arm.fails}
    judged = []
    for fails, arms in own.groupby(own["arm"].isin(failing)):
        # of those that are claimed to learn, or to fail, the one that learns best
        best = max(arms.to_dict("records"), key=lambda arm: arm["gain"])
        claimed = hypothesis.simpler_learns and not fails
        judged.append((best, _as_claimed(best, claimed, minimum_effect)))
    held = [holds for _, holds in judged]
    if hypothesis.simpler_learns:
        held.append(_as_claimed(case, False, minimum_effect))
    holds = False if False in held else None if None in held else True
    arm = next((arm for arm, as_claimed in judged if as_claimed is holds), judged[0][0])
    sure = arm["gain_low"] > minimum_effect
    said = [
        *(
            f"{arm['arm']}: {_gain(arm)} over its baseline, greedy {arm['gain_greedy']:+.3f}"
            for arm, _ in judged
        ),
        *([f"the case: {_gain(case)}"] if hypothesis.simpler_learns else []),
    ]
    return replace(
        _pending(hypothesis),
        status={True: "validated", False: "invalidated", None: "inconclusive"}[holds],
        confidence="low" if holds is None else "high" if sure else "medium",
        effect=arm["gain"],
        ci_low=arm["gain_low"],
        ci_high=arm["gain_high"],
        seeds=arm["seeds"],
        evidence=_BETWEEN.join(said),
        arm=arm["arm"],
        effect_greedy=arm["gain_greedy"],
    )


def _as_claimed(arm: Mapping[Any, Any], learning: bool, minimum_effect: float) -> bool | None:
    """Whether the arm learns, or does not, as is claimed; None where that cannot be told."""
    found = learns(arm, minimum_effect)
    return None if found is None else found == learning


def _gain(arm: Mapping[Any, Any]) -> str:
    return f"{arm['gain']:+.3f} [{arm['gain_low']:+.3f}, {arm['gain_high']:+.3f}]"


def observations(evidence: str) -> list[str]:
    """Return what a verdict's evidence is made of, an observation each."""
    return [said for said in evidence.split(_BETWEEN) if said]


def observed(verdict: Verdict, said: str) -> Verdict:
    """Return the verdict with another observation, the last one."""
    return replace(verdict, evidence=f"{verdict.evidence}{_BETWEEN}{said}")
