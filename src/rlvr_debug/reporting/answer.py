"""The first screen in words: what the case does, why, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rlvr_debug.hypotheses import load_hypothesis

__all__ = ["Answer", "answer", "interval", "seed_counts"]

_LEARNS = {True: "learns", False: "does not learn", None: "may or may not learn"}


@dataclass(frozen=True)
class Answer:
    """case, figures: a sentence each. learns: None where the seeds do not tell. causes: slugs, the strongest first.

    sentences: the answer, one per cause, or the one that says there is none. sure: a line per cause, or one.
    note: what else must be said before anything is made of it; may be empty.
    """

    case: str
    figures: str
    learns: bool | None
    causes: tuple[str, ...]
    sentences: tuple[str, ...]
    sure: tuple[str, ...]
    note: str


def answer(tables: Mapping[str, pd.DataFrame], settings: Mapping[str, Any]) -> Answer:
    """tables: verdicts, arms and runs, as the CSV files. settings: case, trainer, environment, minimum_effect."""
    verdicts, arms = tables["verdicts"], tables["arms"]
    by_arm = arms.set_index("arm")
    case, control = by_arm.loc["case"].to_dict(), by_arm.loc["control"].to_dict()
    learns = _learns(case, settings["minimum_effect"])
    causes = verdicts[(verdicts["kind"] == "cause") & (verdicts["status"] == "validated")]
    ordered = causes.sort_values("effect", ascending=False).to_dict("records")
    slugs = tuple(row["hypothesis"] for row in ordered)
    return Answer(
        case=_case(case, int(tables["runs"]["steps"].iloc[0]), settings, learns),
        figures=_figures(case, control),
        learns=learns,
        causes=slugs,
        sentences=tuple(load_hypothesis(slug).answer for slug in slugs)
        or (_without_cause(learns),),
        sure=tuple(_sure(row, by_arm.loc[row["arm"], "design"]) for row in ordered)
        or (_counted(verdicts),),
        note=" ".join(_notes(slugs, learns, control, arms, settings)),
    )


def interval(estimate: Sequence[float], digits: int = 3) -> str:
    """Value, low and high as text; an infinite interval (one seed) is said in words."""
    value, low, high = (f"{x:+.{digits}f}" for x in estimate)
    if math.isnan(estimate[0]):
        return ""
    return f"{value} [{low}, {high}]" if math.isfinite(estimate[1]) else f"{value} [one seed]"


def _learns(case: Mapping[Any, Any], minimum_effect: float) -> bool | None:
    if case["gain_low"] > 0 and case["gain"] >= minimum_effect:
        return True
    return False if case["gain_high"] < minimum_effect else None


def _case(
    case: Mapping[Any, Any], steps: int, settings: Mapping[str, Any], learns: bool | None
) -> str:
    trainer = "" if settings["trainer"] == "own" else f" with the trainer {settings['trainer']}"
    return (
        f"The case {settings['case']}, GRPO on {settings['environment']}{trainer}, {_LEARNS[learns]} in "
        f"{steps} steps on {seed_counts(case)}."
    )


def _figures(case: Mapping[Any, Any], control: Mapping[Any, Any]) -> str:
    def gain(arm: Mapping[Any, Any]) -> str:
        sampled = [arm[name] for name in ("gain", "gain_low", "gain_high")]
        return f"{interval(sampled)} (greedy {arm['gain_greedy']:+.3f})"

    return (
        f"Held-out reward changes by {gain(case)} in the case and by {gain(control)} in the healthy "
        f"control, over {seed_counts(case, control)}."
    )


def seed_counts(*arms: Mapping[Any, Any]) -> str:
    """Of these arms, such as `3 and 5 seeds`."""
    counts = list(dict.fromkeys(int(arm["seeds"]) for arm in arms))
    return f"{' and '.join(map(str, counts))} seed{'s' if max(counts) > 1 else ''}"


def _without_cause(learns: bool | None) -> str:
    if learns:
        return "The run learns."
    if learns is None:
        return "Whether the run learns is unclear at this number of seeds."
    return "No tested hypothesis explains the failure."


def _sure(verdict: Mapping[Any, Any], design: str) -> str:
    """Of a validated cause. design: of its strongest arm."""
    acts = {
        "alone": "the healthy control with only this defect loses",
        "repair": "the case with only this mended gains",
    }[design]
    return (
        f"{verdict['hypothesis']}: {verdict['status']}, confidence {verdict['confidence']}; {acts} "
        f"{verdict['effect']:.3f} [{verdict['ci_low']:.3f}, {verdict['ci_high']:.3f}] of held-out reward, "
        f"p = {verdict['p_holm']:.2g} after Holm's correction, and its mechanism is {verdict['mechanism']}."
    )


def _counted(verdicts: pd.DataFrame) -> str:
    """Of a study without a cause: how many hypotheses came out how."""
    counts = verdicts["status"].value_counts()
    said = ", ".join(f"{count} {str(status).replace('_', ' ')}" for status, count in counts.items())
    further = verdicts["further_seeds"].dropna()
    finite = further[further.map(math.isfinite)]
    more = f" {int(finite.max())} further seeds would decide." if len(finite) else ""
    return f"Of {len(verdicts)} hypotheses: {said or 'none tested'}.{more}"


def _notes(
    causes: tuple[str, ...],
    learns: bool | None,
    control: Mapping[Any, Any],
    arms: pd.DataFrame,
    settings: Mapping[str, Any],
) -> Iterator[str]:
    if _learns_at_random(arms, settings["minimum_effect"]):
        yield "Random rewards gain as well, so that a gain proves no learning."
    repaired = arms[arms["hypothesis"].isin(causes) & (arms["design"] == "repair")]
    if len(causes) > 1 and not (repaired["status"] == "validated").any():
        yield "Each stops learning by itself, so that mending one alone changes little."
    if causes:
        return
    if learns:
        yield "No hypothesis is validated."
    elif control["status"] == "validated":
        yield (
            "Mending everything helps, but no single hypothesis is validated: "
            "look at the ones that are partially validated or inconclusive."
        )
    elif control["status"] == "invalidated":
        yield "The healthy control does not learn either: the setting itself may allow no learning."
    else:
        yield (
            "The healthy control is not shown to do better, so nothing can be concluded: "
            "train longer or on more seeds."
        )


def _learns_at_random(arms: pd.DataFrame, minimum_effect: float) -> bool:
    """Whether the control with random rewards gains (arXiv 2506.10947)."""
    control = arms[arms["design"] == "random_reward"]
    return bool(((control["gain_low"] > 0) & (control["gain"] >= minimum_effect)).any())
