"""From runs and the case's check to one verdict per hypothesis, by one rule for all (docs/verdicts.md).

The unit is a run's held-out mean on questions that all runs share. An effect is a difference of mean gains over seeds:
a *repair* is the case with one part mended, less the case, and finds a cause that acts by itself; *alone* is the control,
less the control with that part as in the case, and finds one that another defect hides. The control, which mends
everything, and the arms of localisers are judged apart. The arrays and the arms are in rule.py.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from typing import Any

import numpy as np
import pandas as pd

from rlvr_debug.causes import Hypothesis, load_hypothesis
from rlvr_debug.replay.finding import DEVIATES, FAILED, NONE, NOT_SEEN
from rlvr_debug.replay.variants import claims, consequences_for, is_near, segments_for
from rlvr_debug.verdicts.rule import (
    ABSENT,
    MECHANISMS,
    MOST_SEEDS,
    PRESENT,
    REFUTED,
    SHOWN,
    Bar,
    Effects,
    effects_of,
    failure,
    further_seeds,
    learns,
    status,
    tested_causes,
)

_BETWEEN = "; "  # two observations of a verdict's evidence
# of Mechanism.present, as verdicts.csv says it
_SEEN = {True: "present", None: "not tested", False: "absent"}
_CHECKED_STEPS = "absent from the checked steps, which say nothing of the later ones"
# what a cause's verdict has from the row of its strongest arm
_OF_ARM = ("arm", "seeds", "effect", "ci_low", "ci_high", "effect_greedy", "p_holm", "effect_in_sd")
_RISING = ("invalidated", "inconclusive", "partially_validated", "validated")  # statuses of an arm


# --- what the check of a case says of a hypothesis: is its mechanism there?


@dataclass(frozen=True)
class Mechanism:
    """present: None where that cannot be told. text: the observations that say so, as sentences; empty for none."""

    present: bool | None
    text: str


def mechanism_of(slug: str, answer: Mapping[str, Any]) -> Mechanism:
    """Return what the case's check says of the hypothesis' mechanism.

    It is present where a consequence of it is out of its bound, or a segment deviates in a way that it claims: by a
    variant or, where none gives the deviation, in whatever way. What is only near to it neither shows nor rules it out.
    It is absent where all were seen and none deviates so.
    """
    segments = {each["segment"]: each for each in answer.get("segments", ())}
    measured = {each["name"]: each for each in answer.get("consequences", ())}
    own = segments_for(slug)
    said = [_observed(slug, segments.get(name), name) for name in own]
    for found in (measured[name] for name in consequences_for(slug) if name in measured):
        values = ", ".join(f"{key} {value:.3g}" for key, value in found["measured"].items())
        how = "within its bound" if found["passed"] else "out of its bound"
        said.append((not found["passed"], f"{found['name']} {how}: {values}"))
    if not said:
        return Mechanism(None, "")
    all_present = [present for present, _ in said]
    present = True if True in all_present else None if None in all_present else False
    # what agrees needs no words beside what does not
    told = [text for each, text in said if each is present or each is None]
    return Mechanism(present, "; ".join(told))


def _observed(slug: str, segment: Mapping[str, Any] | None, name: str) -> tuple[bool | None, str]:
    if segment is None:
        return None, f"{name} was not checked"
    if segment["status"] == NOT_SEEN:
        return None, f"{name} was not seen: {segment['note']}"
    if segment["status"] == FAILED:
        return None, f"{name} {FAILED}: {segment['note']}"
    if segment["status"] != DEVIATES:
        share = segment["share"]
        how = f"agrees, at {share:.0%} of its tolerance" if share else "agrees"
        return (
            False,
            f"{name} {'is not in the recorded steps' if segment['status'] == NONE else how}",
        )
    by = [each["name"] for each in segment["names"] if each["cause"] == slug]
    if claimed := [each for each in by if not is_near(name, each, slug)]:
        return True, f"{name} deviates as by '{claimed[0]}'"
    if by:
        return None, f"{name} deviates as by '{by[0]}', which is not what the hypothesis claims"
    if segment["names"]:
        other = segment["names"][0]["name"]
        return False, f"{name} deviates as by '{other}', which is of another hypothesis"
    what = f"{name} deviates in a way that nothing known gives: {segment['note']}"
    return (True if claims(slug, name) else None), what


# --- one verdict per hypothesis


@dataclass(frozen=True)
class Evidence:
    """check: what the check says of the case, as JSON (replay/answer.py); arms: one row per arm, as arm_table returns them; runs: as
    runs.csv, for the figures that a hypothesis takes for its symptom; training: the case's settings, for
    preconditions; unchanged: arms that need no runs, as looks.unchanged returns them; whole_run: slugs of the
    hypotheses of which a mechanism that is absent from the checked steps is absent from the case's whole runs."""

    check: Mapping[str, Any]
    arms: pd.DataFrame
    runs: pd.DataFrame = field(default_factory=pd.DataFrame)
    training: Mapping[str, Any] = field(default_factory=dict)
    unchanged: Sequence[Mapping[str, Any]] = ()
    whole_run: Collection[str] = ()

    def mechanism(self, slug: str) -> Mechanism:
        """Return what is known of a hypothesis' mechanism: that it is absent, only where whole runs show it."""
        seen = mechanism_of(slug, self.check)
        if seen.present is not False or slug in self.whole_run:
            return seen
        return Mechanism(None, "; ".join(filter(None, [seen.text, _CHECKED_STEPS])))


@dataclass(frozen=True)
class Verdict:
    """One row of verdicts.csv: effects in held-out reward of `arm`, the one that says most; further_seeds is inf where none decide."""

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


def decide(slugs: Sequence[str], evidence: Evidence, bar: Bar) -> list[Verdict]:
    """Return a verdict on each of these hypotheses."""
    return [
        _localise(hypothesis, evidence, bar.minimum)
        if hypothesis.kind == "localiser"
        else _judge(hypothesis, evidence, bar)
        for hypothesis in map(load_hypothesis, slugs)
    ]


def _judge(hypothesis: Hypothesis, evidence: Evidence, bar: Bar) -> Verdict:
    seen = evidence.mechanism(hypothesis.slug)
    pending = _pending(hypothesis, mechanism=_SEEN[seen.present])
    arms = evidence.arms
    family = tested_causes(arms)
    own = arms[arms["arm"].isin(family) & (arms["hypothesis"] == hypothesis.slug)]
    proved = [
        _PROVED.format(**arm)
        for arm in evidence.unchanged
        if arm["hypothesis"] == hypothesis.slug and arm["arm"] not in set(own["arm"])
    ]
    if own.empty:
        why = _BETWEEN.join(proved)
        shown = replace(pending, status="invalidated", confidence="high", evidence=why)
        return shown if proved else pending
    members = [family.index(arm) for arm in own["arm"]]
    now, later = (each.of(members) for each in effects_of(arms, family, bar))
    mechanism = MECHANISMS[seen.present]
    needed = hypothesis.precondition
    if needed and evidence.training.get(needed.training) == 0:
        if mechanism != PRESENT and not now.settings_differ.any():
            why = _BETWEEN.join(filter(None, [needed.lacking, seen.text]))
            return replace(pending, status="not_applicable", confidence="none", evidence=why)
        # The precondition is missing: an arm that changes nothing is no evidence.
        now, later = (_of_changes(each) for each in (now, later))
    fails, failing = (failure(each) for each in effects_of(arms, ["control"], bar))
    found = str(status(fails, now, mechanism))
    further = further_seeds(found, status(failing, later, mechanism), own["seeds"].min())
    rows = own.to_dict("records")
    best = max(rows, key=lambda arm: (_RISING.index(arm["status"]), arm["effect"]))
    planting = {arm.name for arm in hypothesis.arms if arm.faults}
    said = [*(_sentence(arm, arm["arm"] in planting) for arm in rows), *proved, seen.text]
    if fails != SHOWN and (now.large.any() or found == "explained_costs_nothing"):
        how = "does not fail" if fails == REFUTED else "is not shown to fail"
        control = arms.set_index("arm").loc["control"]
        gains = _interval(control, "effect", "ci_low", "ci_high")
        said.append(f"the case {how}: the control gains {gains} over it")
    if found == "inconclusive":
        said.append(_open(int(fails), now, mechanism, further, bar.minimum))
    elif mechanism == PRESENT and not now.settings_differ.any():
        said.append(_ELSEWHERE)
    change = ["design", "changes"]
    alike = arms[arms["arm"].isin(family)].merge(own.loc[own["changes"] != "", change], on=change)
    if rivals := sorted(set(alike["hypothesis"]) - {hypothesis.slug}):
        said.append(f"not to be told from {', '.join(rivals)}, which the same intervention mends")
    if other := borrowed(hypothesis, arms, evidence.runs):
        said.append(other)
    return replace(
        pending,
        **{name: best[name] for name in _OF_ARM},
        status=found,
        confidence=_confidence(found, now, mechanism, best["ci_low"], bar),
        evidence=_BETWEEN.join(filter(None, said)),
        further_seeds=further,
    )


def _of_changes(effects: Effects) -> Effects:
    """Only what arms that change something show."""
    return replace(
        effects,
        settings_differ=np.ones_like(effects.settings_differ),
        equivalent=effects.equivalent & effects.results_differ,
        bounded=effects.bounded & effects.results_differ,
    )


def _pending(hypothesis: Hypothesis, mechanism: str = "not tested") -> Verdict:
    """Return what is said while no arm was run."""
    return Verdict(hypothesis.slug, hypothesis.kind, "pending", "low", mechanism=mechanism)


_PROVED = "{arm}: not trained, since it is the {as} to the byte, identical in all {steps} steps of {runs} runs"
_ELSEWHERE = "its interventions change nothing about the case, so that what the check found is a symptom of another cause"


def _open(
    fails: int, effects: Effects, mechanism: int, further: float, minimum_effect: float
) -> str:
    """Why a verdict is inconclusive."""
    if not effects.known.all():
        return "one seed has no spread: run more"
    if effects.gained.any() and not effects.large.any():
        return "it gains when sampled and loses when greedy, which is a contradiction"
    if effects.large.any() and fails == REFUTED:
        return "without a failure an effect has nothing to explain"
    if not effects.results_differ.any() and mechanism == PRESENT:
        return _ELSEWHERE.replace("is a symptom", "may be a symptom")
    if isfinite(further):
        plural = "s" if further > 1 else ""
        return f"{further:.0f} further seed{plural} would decide, were effects and spreads to stay"
    if (effects.effect <= -minimum_effect).any():
        return "mending makes it worse, which more seeds would not change"
    return f"more than {MOST_SEEDS} seeds would be needed at the observed effects and spreads"


def _confidence(found: str, effects: Effects, mechanism: int, low: float, bar: Bar) -> str:
    """Return high where the deciding test would hold at a fifth of its level, and the interval lies beyond the minimum, or an absent mechanism agrees."""
    if found == "inconclusive":
        return "low"
    if effects.large.any() and found in ("validated", "located_not_explained"):
        sure = effects.p_holm[effects.large].min() < bar.alpha / 5 and low >= bar.minimum
    else:
        sure = effects.equivalent.all() and (
            mechanism == ABSENT or effects.p_equivalence.max() < bar.clearing / 5
        )
    return "high" if sure else "medium"


def _sentence(arm: Mapping[Any, Any], planted: bool) -> str:
    """planted: whether the arm gives the case a fault."""
    what = "with this fault the case gains" if planted else "mending it in the case gains"
    if arm["design"] == "alone":
        what = "the control with only this defect loses"
    return (
        f"{arm['arm']}: {what} {_interval(arm, 'effect', 'ci_low', 'ci_high')}, "
        f"greedy {arm['effect_greedy']:+.3f}, p {arm['p_holm']:.2g} (Holm), "
        f"p {arm['p_equivalence']:.2g} (equivalence)"
    )


def _localise(hypothesis: Hypothesis, evidence: Evidence, minimum_effect: float) -> Verdict:
    """Judge by gains over the baseline the claim that the simpler setting fails too or, of some, that it learns."""
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
    """Whether the arm learns, or does not, as is claimed; None where that is unclear."""
    learned = learns(arm, minimum_effect)
    return None if learned is None else learned == learning


def _gain(arm: Mapping[Any, Any]) -> str:
    return _interval(arm, "gain", "gain_low", "gain_high")


def _interval(row: Any, *columns: str) -> str:
    value, low, high = (f"{row[column]:+.3f}" for column in columns)
    return f"{value} [{low}, {high}]"


def observations(evidence: str) -> list[str]:
    """Return what a verdict's evidence is made of, an observation each."""
    return [said for said in evidence.split(_BETWEEN) if said]


def observed(verdict: Verdict, said: str) -> Verdict:
    """Return the verdict with another observation, the last one."""
    return replace(verdict, evidence=f"{verdict.evidence}{_BETWEEN}{said}")


# --- symptoms


_NAMES = {"kl_max": "largest KL", "grad_norm_max": "largest gradient norm"}
_EXTREME = 10.0  # an order of magnitude


def borrowed(hypothesis: Hypothesis, arms: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Return as a sentence which cause, once mended, brings a tenfold symptom of the hypothesis down to a tenth; empty for none."""
    if hypothesis.symptom is None or hypothesis.symptom not in runs:
        return ""
    medians = runs.groupby("arm")[hypothesis.symptom].median()
    if not {"case", "control"} <= set(medians.index):
        return ""
    case, control = medians["case"], medians["control"]
    mended = arms[(arms["design"] == "repair") & (arms["status"] == "validated")]
    others = [
        (medians[row["arm"]], row)
        for row in mended.to_dict("records")
        if row["hypothesis"] != hypothesis.slug
        and load_hypothesis(row["hypothesis"]).kind == "cause"
        and medians[row["arm"]] <= case / _EXTREME
    ]
    if not case >= _EXTREME * control or not others:
        return ""
    value, row = min(others, key=lambda found: found[0])
    return (
        f"its figures come from {row['hypothesis']}: the {_NAMES[hypothesis.symptom]} is {case:.3g} in the case, "
        f"{value:.3g} with {row['arm']} mended and {control:.3g} in the control"
    )
