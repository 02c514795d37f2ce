"""From runs and probes to one verdict per hypothesis. The rule is the same for every hypothesis.

Two effects are measured, as differences of mean gain in held-out reward over seeds (Welch):
- repair: the case with one part mended, minus the case. It finds a cause that acts by itself.
- alone: the control minus the control with that part as in the case. It finds a cause that another
  defect hides: with two defects of which each is enough to stop learning, mending one changes nothing.

A cause is
- validated when its mechanism is present and one of its effects is at least the minimum effect, sampled
  and greedy, with a p value below alpha after Holm's correction over all effects of the study;
- partially validated when the mechanism is present and an effect is significant but smaller than that,
  or shows only when sampled (sharpening, not learning);
- invalidated when no effect's interval reaches the minimum effect, or when the mechanism is absent and
  no effect is significant;
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
    """One row of verdicts.csv. Effects are in held-out reward, [0, 1], at the training temperature;
    those of `arm`, the one that says most."""

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
    """One row per arm: its gain over the baseline and, in the main environment, its effect.

    runs: as runs.csv, one row per arm and seed. The control's effect is that of mending everything.
    """
    by_arm = {str(arm): group for arm, group in runs.groupby("arm", sort=False)}
    rows: list[dict[str, Any]] = []
    for arm, group in by_arm.items():
        gain = mean_estimate(group["gain"], alpha)
        design = group["design"].iloc[0]
        row: dict[str, Any] = {
            "arm": arm,
            "design": design,
            "hypothesis": group["hypothesis"].iloc[0],
            "environment": group["environment"].iloc[0],
            "seeds": len(group),
            "gain": gain.value,
            "gain_low": gain.low,
            "gain_high": gain.high,
            "gain_greedy": float(group["gain_greedy"].mean()),
        }
        if design not in ("case", "random_reward") and row["environment"] == main:
            better, worse = (
                (by_arm["control"], group) if design == "alone" else (group, by_arm["case"])
            )
            effect = welch(better["gain"], worse["gain"], alpha)
            greedy = welch(better["gain_greedy"], worse["gain_greedy"], alpha)
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
        row["status"] = _arm_status(row, alpha, minimum_effect)
    return pd.DataFrame(rows)


def _arm_status(arm: Mapping[str, Any], alpha: float, minimum_effect: float) -> str:
    """What the arm's effect says by itself, whatever the mechanism.

    An effect that is surely there and surely smaller than the minimum explains nothing.
    """
    too_small = max(arm["ci_high"], arm["greedy_high"]) < minimum_effect
    if arm["p_holm"] < alpha and arm["effect"] > 0 and not too_small:
        large = arm["effect"] >= minimum_effect and arm["effect_greedy"] >= minimum_effect
        return "validated" if large else "partially_validated"
    return "invalidated" if arm["ci_high"] < minimum_effect else "inconclusive"


def decide(
    slugs: Sequence[str], evidence: Evidence, alpha: float, minimum_effect: float
) -> list[Verdict]:
    return [
        _localise(hypothesis, evidence, minimum_effect)
        if hypothesis.kind == "localiser"
        else _judge(hypothesis, evidence)
        for hypothesis in map(load_hypothesis, slugs)
    ]


def _judge(hypothesis: Hypothesis, evidence: Evidence) -> Verdict:
    finding = hypothesis.mechanism(evidence)
    own = evidence.arms[evidence.arms["hypothesis"] == hypothesis.slug]
    own = own.dropna(subset=["effect"])  # in another environment there is no case to compare with
    if own.empty:
        return _verdict(hypothesis, "pending", "low", None, finding, "no arm was run")
    best = max(_records(own), key=lambda arm: (_strength(arm), arm["effect"]))
    status, confidence = _status(set(own["status"]), finding, best["p_holm"])
    effects = [_sentence(arm) for arm in _records(own)]
    return _verdict(
        hypothesis, status, confidence, best, finding, "; ".join([*effects, finding.text])
    )


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def _strength(arm: Mapping[str, Any]) -> int:
    return ("invalidated", "inconclusive", "partially_validated", "validated").index(arm["status"])


def _sentence(arm: Mapping[str, Any]) -> str:
    what = (
        "the control with only this defect loses"
        if arm["design"] == "alone"
        else "mending it in the case gains"
    )
    return (
        f"{arm['arm']}: {what} {arm['effect']:+.3f} [{arm['ci_low']:+.3f}, {arm['ci_high']:+.3f}], "
        f"greedy {arm['effect_greedy']:+.3f}, p {arm['p_holm']:.2g} (Holm)"
    )


def _status(arms: set[str], finding: Finding, p: float) -> tuple[str, str]:
    if finding.present and "validated" in arms:
        return "validated", "high" if p < 0.01 else "medium"
    if finding.present and "partially_validated" in arms:
        return "partially_validated", "medium"
    if arms == {"invalidated"}:
        return "invalidated", "medium" if finding.present else "high"
    if finding.present is False and not arms & {"validated", "partially_validated"}:
        return "invalidated", "medium"
    return "inconclusive", "low"


def _localise(hypothesis: Hypothesis, evidence: Evidence, minimum_effect: float) -> Verdict:
    """The claim is that the simpler setting fails too: its own gain over the baseline decides."""
    own = evidence.arms[evidence.arms["hypothesis"] == hypothesis.slug]
    none = Finding(None, "")
    if own.empty:
        return _verdict(hypothesis, "pending", "low", None, none, "no arm was run")
    arm = max(_records(own), key=lambda arm: arm["gain"])
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
    gain = {
        "effect": arm["gain"],
        "ci_low": arm["gain_low"],
        "ci_high": arm["gain_high"],
        "effect_greedy": arm["gain_greedy"],
        "p_holm": float("nan"),
    }
    return _verdict(hypothesis, status, confidence, {**arm, **gain}, none, text)


def _verdict(
    hypothesis: Hypothesis,
    status: str,
    confidence: str,
    arm: Mapping[str, Any] | None,
    finding: Finding,
    text: str,
) -> Verdict:
    arm = arm or {}
    nan = float("nan")
    return Verdict(
        hypothesis=hypothesis.slug,
        kind=hypothesis.kind,
        status=status,
        confidence=confidence,
        effect=arm.get("effect", nan),
        ci_low=arm.get("ci_low", nan),
        ci_high=arm.get("ci_high", nan),
        seeds=arm.get("seeds", 0),
        evidence=text,
        arm=arm.get("arm", ""),
        effect_greedy=arm.get("effect_greedy", nan),
        p_holm=arm.get("p_holm", nan),
        mechanism={True: "present", False: "absent", None: "not tested"}[finding.present],
    )


def verdict_table(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    return pd.DataFrame([asdict(verdict) for verdict in verdicts])
