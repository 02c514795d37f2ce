"""The study in words: what the case does, why, how sure that is, and whether what mends it is a fix.

A sentence stands beside its condition, which asks of the numbers that the sentence is about.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from rlvr_debug.causes import load_hypothesis
from rlvr_debug.replay.finding import DEVIATES
from rlvr_debug.trainers import load_trainer
from rlvr_debug.verdicts.rule import Bar, in_answer, in_words, learns, unfailing

Row = Mapping[Any, Any]


@dataclass(frozen=True)
class Answer:
    """The answer in sentences: one per cause, the strongest first, or the one that says there is none, and what must be said beside it.

    fixes: what mends each cause, in the order of causes.
    """

    case: str
    figures: str
    causes: tuple[str, ...]
    sentences: tuple[str, ...]
    fixes: tuple[str, ...]
    sure: tuple[str, ...]
    note: str


def answer(
    tables: Mapping[str, pd.DataFrame],
    settings: Mapping[str, Any],
    check: Mapping[str, Any] | None = None,
) -> Answer:
    """Return the answer that the study's tables and the case's check give."""
    runs, verdicts = tables["runs"], tables["verdicts"].to_dict("records")
    arms: dict[str, Row] = {row["arm"]: row for row in tables["arms"].to_dict("records")}
    case, control, minimum = arms["case"], arms["control"], settings["minimum_effect"]
    rows = _causes(tables["verdicts"], "validated", "located_not_explained")
    causes = sorted(rows.sort_values("effect", ascending=False).to_dict("records"), key=in_answer)
    ours = load_trainer(settings["trainer"]).ours
    by = "" if ours else f" with the trainer {settings['trainer']}"
    does = {True: "learns", False: "does not learn", None: "may or may not learn"}
    steps = int(runs.loc[runs["arm"] == "case", "steps"].iloc[0])
    # arXiv 2506.10947
    gains = any(learns(arm, minimum) for arm in arms.values() if arm["design"] == "random_reward")
    random = ["Random rewards gain as well, so that a gain proves no learning."] if gains else []
    if causes:
        notes = _each_stops(causes, arms, minimum)
    else:
        notes = _without_cause(verdicts, case, control, settings)
    return Answer(
        case=f"The case {settings['case']}, GRPO on {settings['environment']}{by}, "
        f"{does[learns(case, minimum)]} in {steps} steps on {seed_counts(case)}.",
        figures=f"Held-out reward changes by {_gain(case)} in the case and by {_gain(control)} in the "
        f"healthy control, over {seed_counts(case, control)}.",
        causes=tuple(row["hypothesis"] for row in causes),
        sentences=tuple(map(_cause, causes)) or (_no_cause(verdicts, learns(case, minimum)),),
        fixes=tuple(map(_fix, causes)),
        sure=tuple(_sure(row, arms[row["arm"]]) for row in causes) or (_counted(verdicts),),
        note=" ".join([*random, *notes, *([] if ours else _unswapped(check or {}, verdicts))]),
    )


def _cause(verdict: Row) -> str:
    """What a validated or a located cause answers."""
    hypothesis = load_hypothesis(verdict["hypothesis"])
    if verdict["status"] == "validated":
        return hypothesis.answer
    if hypothesis.part:
        cost = "{effect:.2f} [{ci_low:.2f}, {ci_high:.2f}] of held-out reward".format_map(verdict)
        return f"Something in {hypothesis.part} that no hypothesis names costs {cost}."
    return (
        f"What {verdict['arm']} changes is where it goes wrong, as it costs {verdict['effect']:.2f} of held-out reward; "
        "why, the check does not say."
    )


def _fix(verdict: Row) -> str:
    """What mends a validated cause, or is worth a try for one that is located and not explained."""
    begin = "Fix" if verdict["status"] == "validated" else "Try"
    return f"{begin}: {load_hypothesis(verdict['hypothesis']).next_steps}"


def _no_cause(verdicts: Sequence[Row], learning: bool | None) -> str:
    if learning is None:
        return "Whether the run learns is unclear at this number of seeds."
    if learning:
        return "The run learns."
    if all(row["status"] in ("pending", "not_applicable") for row in verdicts):
        return "The run does not learn, and no hypothesis was tested."
    return "The run does not learn, and no tested hypothesis is shown to explain that."


def interval(estimate: Sequence[float], digits: int = 3) -> str:
    """Value, low and high as text; an infinite interval (one seed) is said in words."""
    value, low, high = (f"{x:+.{digits}f}" for x in estimate)
    if math.isnan(estimate[0]):
        return ""
    return f"{value} [{low}, {high}]" if math.isfinite(estimate[1]) else f"{value} [one seed]"


def _gain(arm: Row) -> str:
    sampled = [arm[name] for name in ("gain", "gain_low", "gain_high")]
    return f"{interval(sampled)} (greedy {arm['gain_greedy']:+.3f})"


def seed_counts(*arms: Row) -> str:
    """Of these arms, such as `3 and 5 seeds`."""
    counts = list(dict.fromkeys(int(arm["seeds"]) for arm in arms))
    return f"{' and '.join(map(str, counts))} seed{'s' if max(counts) > 1 else ''}"


def _sure(cause: Row, arm: Row) -> str:
    """arm: its strongest one."""
    if _is_alone(arm):
        acts = "the healthy control with only this defect loses"
    elif any(change.startswith("with ") for change in str(arm["changes"]).split("; ")):
        acts = "the case with this fault gains"
    else:
        acts = "the case with only this mended gains"
    text = (
        "{hypothesis}: {status}, confidence {confidence}; {acts} {effect:.3f} [{ci_low:.3f}, {ci_high:.3f}] of "
        "held-out reward, p = {p_holm:.2g} after Holm's correction, and its mechanism is {mechanism}."
    )
    return text.format_map({**cause, "status": in_words(cause["status"]), "acts": acts})


def _counted(verdicts: Sequence[Row]) -> str:
    """Of a study without a cause: how many hypotheses came out how, and how many seeds would decide more."""
    counts = Counter(in_words(row["status"]) for row in verdicts).most_common()
    said = ", ".join(f"{count} {status}" for status, count in counts) or "none tested"
    of = "hypothesis" if len(verdicts) == 1 else "hypotheses"
    unsure = [row["further_seeds"] for row in verdicts if row["status"] == "inconclusive"]
    finite = [int(count) for count in unsure if math.isfinite(count)]
    what = "" if len(finite) == len(unsure) else f" {len(finite)} of the inconclusive"
    seeds = f"{max(finite, default=0)} further seed{'s' if max(finite, default=0) > 1 else ''}"
    more = f" {seeds} per arm would decide{what}." if finite else ""
    return f"Of {len(verdicts)} {of}: {said}.{more}"


# --- what must be said before anything is made of it


def _each_stops(causes: Sequence[Row], arms: Mapping[str, Row], minimum: float) -> Iterator[str]:
    strongest = [arms[row["arm"]] for row in causes]
    slugs = {row["hypothesis"] for row in causes}
    alone = [name for name, arm in arms.items() if _is_alone(arm) and arm["hypothesis"] in slugs]
    repairs = [arms.get(name.removesuffix("-alone"), {}) for name in alone]
    if (
        len(causes) > 1
        and learns(arms["control"], minimum)
        and all(_is_alone(arm) and learns(arm, minimum) is False for arm in strongest)
        and all(repair.get("status") == "invalidated" for repair in repairs)
    ):
        yield "Each stops learning by itself, so that mending one alone changes little."


def _is_alone(arm: Row) -> bool:
    return bool(arm["design"] == "alone")


def _without_cause(
    verdicts: Sequence[Row], case: Row, control: Row, settings: Mapping[str, Any]
) -> Iterator[str]:
    """What the control says of a study without a cause."""
    minimum = settings["minimum_effect"]
    as_well = unfailing(control, Bar.of(settings["alpha"], minimum))
    fails = learns(case, minimum) is False
    if fails and learns(control, minimum) is False:
        yield "The healthy control does not learn either: the setting itself may allow no learning."
    elif as_well and fails:
        yield "The healthy control does hardly better than the case, which does not learn: train longer."
    elif as_well:
        yield "The case does as well as the healthy control, so that there is no failure to explain."
    if control["status"] == "validated":
        unsure = [
            f"{row['hypothesis']} ({in_words(row['status'])})"
            for row in verdicts
            if row["kind"] == "cause" and row["status"] in ("partially_validated", "inconclusive")
        ]
        look = f": look at {', '.join(unsure)}" if unsure else ""
        yield f"Mending everything helps, but no single cause is validated{look}."
    elif not as_well:
        yield (
            f"The healthy control is not shown to do better by {minimum:g}, so that no failure is shown: "
            "train longer or on more seeds."
        )


def _unswapped(check: Mapping[str, Any], verdicts: Sequence[Row]) -> Iterator[str]:
    """Of another's trainer, of which no stage can be swapped."""
    tested = {row["hypothesis"] for row in verdicts}
    names = [
        segment["segment"]
        for segment in check.get("segments", ())
        if segment["status"] == DEVIATES and not tested & set(segment["causes"])
    ]
    if names:
        said = f"{', '.join(names)} deviate{'' if len(names) > 1 else 's'}"
        yield f"The check of the case finds that {said}, which no hypothesis of this study is about."


# --- whether it is a fix


@dataclass(frozen=True)
class Criterion:
    """One of the original's five criteria of success. met: None where this study cannot say."""

    name: str
    measured: str
    met: bool | None


def fix(arms: pd.DataFrame) -> str:
    """The arm that is judged as the fix: the validated repair of a cause that gains most, else the control."""
    repairs = arms[(arms["design"] == "repair") & (arms["status"] == "validated")]
    repairs = repairs[[load_hypothesis(slug).kind == "cause" for slug in repairs["hypothesis"]]]
    return "control" if repairs.empty else str(repairs.sort_values("gain")["arm"].iloc[-1])


def success_criteria(
    arms: pd.DataFrame, runs: pd.DataFrame, verdicts: pd.DataFrame, settings: Mapping[str, Any]
) -> list[Criterion]:
    """Of the fix. arms, runs, verdicts: as the CSV files; settings: minimum_effect."""
    arm = fix(arms)
    [row] = arms[arms["arm"] == arm].to_dict("records")
    gains = runs[runs["arm"] == arm][["gain", "gain_greedy"]].min(axis=1)
    slope, gain = (
        [row[f"{name}{end}"] for end in ("", "_low", "_high")] for name in ("slope", "gain")
    )
    enough = min(row["gain"], row["gain_greedy"]) >= settings["minimum_effect"]
    causes = _causes(verdicts, "validated")["hypothesis"]
    # the control mends every cause, a repair its own
    mended = [slug for slug in causes if arm == "control" or slug == row["hypothesis"]]
    explained = f"mechanism present and effect shown: {', '.join(mended)}"
    held_out = f"{interval(gain)} sampled, {row['gain_greedy']:+.3f} greedy"
    alike = f"{int((gains > 0).sum())} of {len(gains)} seeds gain, sampled and greedy"
    criteria = (
        (
            "a steady upward trend of the training reward",
            f"{interval(slope, 4)} per step",
            slope[1] > 0,
        ),
        ("a gain over the baseline on held-out data", held_out, gain[1] > 0 and enough),
        ("the same over several seeds", alike, len(gains) > 1 and (gains > 0).all()),
        (
            "an explanation of why the fix works",
            explained if mended else "no cause that it mends is validated",
            mended,
        ),
    )
    return [
        *(Criterion(name, measured, bool(met)) for name, measured, met in criteria),
        Criterion("confirmed at full scale", "not run here", None),
    ]


def _causes(verdicts: pd.DataFrame, *statuses: str) -> pd.DataFrame:
    """Those of causes with one of these statuses."""
    return verdicts[(verdicts["kind"] == "cause") & verdicts["status"].isin(statuses)]


# --- how an arm's training went


_WIDER = 2.0  # times the control's spread that is oscillation
_EXTREME = 10.0  # times the control's gradient norm or KL, an order of magnitude
_BOUNDS = {"grad_norm_max": 100.0, "kl_max": 1.0}  # and no less, as what a log is read for


@dataclass(frozen=True)
class Course:
    """How one arm's training went, as medians over seeds; reversals are the share of steps at which the reward turns, spread is around its own line."""

    trend: str
    stability: str
    reversals: float
    spread: float
    grad_norm: float
    kl: float


def courses(tables: Mapping[str, pd.DataFrame]) -> dict[str, Course]:
    """Return the course of every arm: the trend of its reward, and whether KL or gradient norm are extreme beside the control's."""
    figures = {
        str(arm): _figures(group) for arm, group in tables["curves"].groupby("arm", sort=False)
    }
    largest = tables["runs"].groupby("arm")[list(_BOUNDS)].median()
    rows = {row["arm"]: row for row in tables["arms"].to_dict("records")}
    _, usual = figures["control"]
    by_arm = {}
    for arm, (reversals, spread) in figures.items():
        own = largest.loc[arm]
        exploded, diverged = (own >= _EXTREME * largest.loc["control"]) & (
            own >= pd.Series(_BOUNDS)
        )
        by_arm[arm] = Course(
            _trend(rows[arm], spread >= _WIDER * usual > 0),
            "gradient explosion" if exploded else "unstable" if diverged else "stable",
            reversals,
            spread,
            *own.astype(float),
        )
    return by_arm


def _figures(curves: pd.DataFrame) -> tuple[float, float]:
    """Reversals and spread, medians over the arm's seeds."""
    each = []
    for _, run in curves.groupby("seed"):
        rewards = run.sort_values("step")["reward"].to_numpy(dtype=np.float64)
        steps = np.arange(rewards.size)
        turns = np.diff(np.sign(np.diff(rewards))) != 0
        line = (
            np.polynomial.Polynomial.fit(steps, rewards, 1)(steps) if rewards.size > 2 else rewards
        )
        each.append((turns.mean() if turns.size else 0.0, (rewards - line).std()))
    reversals, spread = np.median(each, axis=0)
    return float(reversals), float(spread)


def _trend(arm: Mapping[Any, Any], oscillates: bool) -> str:
    if arm["slope_low"] > 0:
        return "improving"
    if arm["slope_high"] < 0:
        return "declining"
    return "oscillating" if oscillates else "stable"
