"""From runs and probes to one verdict per hypothesis. The rule is the same for every hypothesis.

An arm's effect is its mean gain in held-out reward minus the case's, over seeds (Welch). A cause is
- validated when its mechanism is present and an arm gains at least the minimum effect, sampled and
  greedy, with a p value below alpha after Holm's correction over all intervention arms and controls;
- partially validated when the mechanism is present and an arm's gain is significant but smaller than
  that, or shows only when sampled (sharpening, not learning);
- invalidated when no arm's interval reaches the minimum effect, or when the mechanism is absent and no
  arm gains significantly;
- inconclusive otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from rlvr_debug.hypotheses import load_hypothesis
from rlvr_debug.hypotheses.base import Evidence, Finding, Hypothesis
from rlvr_debug.verdicts.statistics import holm, mean_estimate, welch

__all__ = ["STATUSES", "Verdict", "arm_table", "decide"]

STATUSES = ("pending", "validated", "partially_validated", "invalidated", "inconclusive")


@dataclass(frozen=True)
class Verdict:
    """One row of verdicts.csv. Effects are in held-out reward, [0, 1], at the training temperature."""

    hypothesis: str
    kind: str
    status: str
    confidence: str
    effect: float
    ci_low: float
    ci_high: float
    seeds: int
    evidence: str
    arm: str
    effect_greedy: float
    p_holm: float
    mechanism: str


def arm_table(runs: pd.DataFrame, main: str, alpha: float, minimum_effect: float) -> pd.DataFrame:
    """One row per arm: its gain over the baseline, and for arms of the main environment the effect
    against the case.

    runs: as runs.csv, one row per arm and seed. Raises KeyError when the case is missing.
    """
    case = runs[runs["arm"] == "case"]
    rows: list[dict[str, Any]] = []
    for arm, group in runs.groupby("arm", sort=False):
        gain = mean_estimate(group["gain"], alpha)
        row: dict[str, Any] = {
            "arm": arm,
            "hypothesis": group["hypothesis"].iloc[0],
            "environment": group["environment"].iloc[0],
            "seeds": len(group),
            "gain": gain.value,
            "gain_low": gain.low,
            "gain_high": gain.high,
            "gain_greedy": float(group["gain_greedy"].mean()),
        }
        if arm != "case" and row["environment"] == main:
            effect = welch(group["gain"], case["gain"], alpha)
            greedy = welch(group["gain_greedy"], case["gain_greedy"], alpha)
            row |= {
                "effect": effect.value,
                "ci_low": effect.low,
                "ci_high": effect.high,
                "p": effect.p,
                "effect_greedy": greedy.value,
                "greedy_low": greedy.low,
                "greedy_high": greedy.high,
            }
        rows.append(row)
    tested = [row for row in rows if "effect" in row]
    for row, adjusted in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = adjusted
        row["outcome"] = _outcome(row, alpha, minimum_effect)
    return pd.DataFrame(rows)


def _outcome(arm: Mapping[str, Any], alpha: float, minimum_effect: float) -> str:
    """What the arm's effect alone says: gain, small_gain, sharpening, no_gain or unclear."""
    significant = arm["p_holm"] < alpha and arm["effect"] > 0
    if significant and arm["effect"] < minimum_effect:
        return "small_gain"
    if significant:
        return "gain" if arm["effect_greedy"] >= minimum_effect else "sharpening"
    return "no_gain" if arm["ci_high"] < minimum_effect else "unclear"


def decide(
    slugs: Sequence[str], evidence: Evidence, alpha: float, minimum_effect: float
) -> list[Verdict]:
    return [
        _localise(hypothesis, evidence, minimum_effect)
        if hypothesis.kind == "localiser"
        else _judge(hypothesis, evidence, minimum_effect)
        for hypothesis in map(load_hypothesis, slugs)
    ]


def _judge(hypothesis: Hypothesis, evidence: Evidence, minimum_effect: float) -> Verdict:
    finding = hypothesis.mechanism(evidence)
    own = evidence.arms[evidence.arms["hypothesis"] == hypothesis.slug]
    if own.empty:
        return _verdict(hypothesis, "pending", "low", None, finding, "no arm was run")
    best = own.loc[own["effect"].idxmax()]
    outcomes = set(own["outcome"])
    status, confidence = _status(outcomes, finding, float(best["p_holm"]))
    evidence_text = (
        f"{best['arm']}: {best['effect']:+.3f} [{best['ci_low']:+.3f}, {best['ci_high']:+.3f}] against "
        f"the case, greedy {best['effect_greedy']:+.3f}, p {best['p_holm']:.2g} after Holm; "
        f"{finding.text}"
    )
    return _verdict(hypothesis, status, confidence, best, finding, evidence_text)


def _status(outcomes: set[str], finding: Finding, p: float) -> tuple[str, str]:
    gained = outcomes & {"gain", "small_gain", "sharpening"}
    if finding.present and "gain" in outcomes:
        return "validated", "high" if p < 0.01 else "medium"
    if finding.present and gained:
        return "partially_validated", "medium"
    if outcomes == {"no_gain"}:
        return "invalidated", "medium" if finding.present else "high"
    if finding.present is False and not gained:
        return "invalidated", "medium"
    return "inconclusive", "low"


def _localise(hypothesis: Hypothesis, evidence: Evidence, minimum_effect: float) -> Verdict:
    """The claim is that the simpler setting fails too: its own gain over the baseline decides."""
    own = evidence.arms[evidence.arms["hypothesis"] == hypothesis.slug]
    none = Finding(None, "")
    if own.empty:
        return _verdict(hypothesis, "pending", "low", None, none, "no arm was run")
    arm = own.loc[own["gain"].idxmax()]
    if arm["gain_low"] > 0 and arm["gain"] >= minimum_effect:
        status, confidence = "invalidated", "high" if arm["gain_low"] > minimum_effect else "medium"
    elif arm["gain_high"] < minimum_effect:
        status, confidence = "validated", "medium"
    else:
        status, confidence = "inconclusive", "low"
    text = (
        f"{arm['arm']}: {arm['gain']:+.3f} [{arm['gain_low']:+.3f}, {arm['gain_high']:+.3f}] over its "
        f"baseline, greedy {arm['gain_greedy']:+.3f}"
    )
    arm = arm.copy()
    arm[["effect", "ci_low", "ci_high", "effect_greedy"]] = arm[
        ["gain", "gain_low", "gain_high", "gain_greedy"]
    ].to_numpy()
    return _verdict(hypothesis, status, confidence, arm, none, text)


def _verdict(
    hypothesis: Hypothesis,
    status: str,
    confidence: str,
    arm: pd.Series | None,
    finding: Finding,
    text: str,
) -> Verdict:
    nan = float("nan")
    mechanism = {True: "present", False: "absent", None: "not tested"}[finding.present]
    return Verdict(
        hypothesis=hypothesis.slug,
        kind=hypothesis.kind,
        status=status,
        confidence=confidence,
        effect=nan if arm is None else float(arm["effect"]),
        ci_low=nan if arm is None else float(arm["ci_low"]),
        ci_high=nan if arm is None else float(arm["ci_high"]),
        seeds=0 if arm is None else int(arm["seeds"]),
        evidence=text,
        arm="" if arm is None else str(arm["arm"]),
        effect_greedy=nan if arm is None else float(arm["effect_greedy"]),
        p_holm=nan if arm is None else float(arm.get("p_holm", nan)),
        mechanism=mechanism,
    )


def verdict_table(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    return pd.DataFrame([asdict(verdict) for verdict in verdicts])
