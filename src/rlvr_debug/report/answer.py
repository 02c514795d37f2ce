"""The study in words: what the case does, why, how sure that is, and whether what mends it is a fix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from rlvr_debug.causes import load_hypothesis
from rlvr_debug.files import read_yaml
from rlvr_debug.replay.finding import DEVIATES
from rlvr_debug.trainers import load_trainer
from rlvr_debug.verdicts.rule import Bar, in_answer, in_words, learns, unfailing

__all__ = ["Answer", "Criterion", "answer", "fix", "interval", "seed_counts", "success_criteria"]

_TEXTS: dict[str, Any] = read_yaml(Path(__file__).with_name("answer.yaml"))


@dataclass(frozen=True)
class Answer:
    """case, figures: a sentence each. learns: None where the seeds do not tell. causes: slugs of those that are validated
    or located, the strongest first.

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


def answer(
    tables: Mapping[str, pd.DataFrame],
    settings: Mapping[str, Any],
    check: Mapping[str, Any] | None = None,
) -> Answer:
    """tables: verdicts, arms and runs, as the CSV files. settings: case, trainer, environment, minimum_effect, alpha.

    check: what the case's check says, as JSON.
    """
    verdicts, arms = tables["verdicts"], tables["arms"]
    by_arm = arms.set_index("arm")
    case, control = by_arm.loc["case"].to_dict(), by_arm.loc["control"].to_dict()
    found = learns(case, settings["minimum_effect"])
    found_rows = _found(verdicts, "validated", "located_not_explained")
    ordered = sorted(
        found_rows.sort_values("effect", ascending=False).to_dict("records"), key=in_answer
    )
    slugs = tuple(row["hypothesis"] for row in ordered)
    ours = load_trainer(settings["trainer"]).ours
    return Answer(
        case=_TEXTS["case"].format(
            case=settings["case"],
            environment=settings["environment"],
            trainer="" if ours else f" with the trainer {settings['trainer']}",
            learns=_TEXTS["learns"][found],
            steps=int(tables["runs"]["steps"].iloc[0]),
            seeds=seed_counts(case),
        ),
        figures=_TEXTS["figures"].format(
            case=_gain(case), control=_gain(control), seeds=seed_counts(case, control)
        ),
        learns=found,
        causes=slugs,
        sentences=tuple(map(_sentence, ordered)) or (_TEXTS["without_cause"][found],),
        sure=tuple(
            _TEXTS["sure"].format_map(
                {
                    **row,
                    "status": in_words(row["status"]),
                    "acts": _TEXTS["acts"][by_arm.loc[row["arm"], "design"]],
                }
            )
            for row in ordered
        )
        or (_counted(verdicts),),
        note=" ".join(
            [
                *_notes(slugs, found, control, arms, settings),
                *([] if ours else _unswapped(check or {}, set(verdicts["hypothesis"]))),
            ]
        ),
    )


def _sentence(verdict: Mapping[Any, Any]) -> str:
    """What a validated or a located cause answers."""
    hypothesis = load_hypothesis(verdict["hypothesis"])
    if verdict["status"] == "validated":
        return hypothesis.answer
    if hypothesis.part:
        return str(_TEXTS["unnamed"].format_map({**verdict, "part": hypothesis.part}))
    return str(_TEXTS["located"].format_map(verdict))


def interval(estimate: Sequence[float], digits: int = 3) -> str:
    """Value, low and high as text; an infinite interval (one seed) is said in words."""
    value, low, high = (f"{x:+.{digits}f}" for x in estimate)
    if math.isnan(estimate[0]):
        return ""
    return f"{value} [{low}, {high}]" if math.isfinite(estimate[1]) else f"{value} [one seed]"


def _gain(arm: Mapping[Any, Any]) -> str:
    sampled = [arm[name] for name in ("gain", "gain_low", "gain_high")]
    return f"{interval(sampled)} (greedy {arm['gain_greedy']:+.3f})"


def seed_counts(*arms: Mapping[Any, Any]) -> str:
    """Of these arms, such as `3 and 5 seeds`."""
    counts = list(dict.fromkeys(int(arm["seeds"]) for arm in arms))
    return f"{' and '.join(map(str, counts))} seed{'s' if max(counts) > 1 else ''}"


def _counted(verdicts: pd.DataFrame) -> str:
    """Of a study without a cause: how many hypotheses came out how."""
    counts = verdicts["status"].value_counts()
    said = ", ".join(f"{count} {in_words(str(status))}" for status, count in counts.items())
    further = verdicts["further_seeds"].dropna()
    finite = further[further.map(math.isfinite)]
    count = int(finite.max()) if len(finite) else 0
    more = f" {count} further seed{'s' if count > 1 else ''} would decide." if count else ""
    of = "hypothesis" if len(verdicts) == 1 else "hypotheses"
    return f"Of {len(verdicts)} {of}: {said or 'none tested'}.{more}"


def _notes(
    causes: tuple[str, ...],
    found: bool | None,
    control: Mapping[Any, Any],
    arms: pd.DataFrame,
    settings: Mapping[str, Any],
) -> Iterator[str]:
    notes = _TEXTS["notes"]
    at_random = arms[arms["design"] == "random_reward"].to_dict("records")
    # arXiv 2506.10947
    if any(learns(arm, settings["minimum_effect"]) for arm in at_random):
        yield notes["random"]
    repaired = arms[arms["hypothesis"].isin(causes) & (arms["design"] == "repair")]
    if len(causes) > 1 and not (repaired["status"] == "validated").any():
        yield notes["each_stops"]
    if not causes:
        if unfailing(control, Bar.of(settings["alpha"], settings["minimum_effect"])):
            yield notes["unfailing"] if found else notes["both_fail"]
        else:
            yield notes.get(control["status"], notes["open"])


def _unswapped(check: Mapping[str, Any], tested: Set[str]) -> Iterator[str]:
    """Say which segments deviate that speak for no hypothesis of the study: no arm changes what another's trainer does there."""
    found = [
        each["segment"]
        for each in check.get("segments", ())
        if each["status"] == DEVIATES and not tested & set(each["causes"])
    ]
    if found:
        plural = "" if len(found) > 1 else "s"
        yield _TEXTS["unswapped"].format(segments=", ".join(found), s=plural)


@dataclass(frozen=True)
class Criterion:
    """One of the original's five criteria of success. met: None where this study cannot say."""

    name: str
    measured: str
    met: bool | None


def fix(arms: pd.DataFrame) -> str:
    """The arm that is judged as the fix: the validated repair that gains most, else the control."""
    repairs = arms[(arms["design"] == "repair") & (arms["status"] == "validated")]
    return "control" if repairs.empty else str(repairs.sort_values("gain")["arm"].iloc[-1])


def success_criteria(
    arms: pd.DataFrame, runs: pd.DataFrame, verdicts: pd.DataFrame, settings: Mapping[str, Any]
) -> list[Criterion]:
    """Of the fix that was found. arms, runs, verdicts: as the CSV files; settings: minimum_effect."""
    arm = fix(arms)
    [row] = arms[arms["arm"] == arm].to_dict("records")
    gains = runs[runs["arm"] == arm][["gain", "gain_greedy"]].min(axis=1)
    minimum = settings["minimum_effect"]
    causes = ", ".join(_found(verdicts, "validated")["hypothesis"])
    explained = f"mechanism present and effect shown: {causes}"
    values = {
        **row,
        "gaining": int((gains > 0).sum()),
        "seeds": len(gains),
        "slope_said": interval([row[key] for key in ("slope", "slope_low", "slope_high")], 4),
        "gain_said": interval([row[key] for key in ("gain", "gain_low", "gain_high")]),
        "explanation": explained if causes else "no cause is validated",
    }
    met = (
        bool(row["slope_low"] > 0),
        bool(row["gain_low"] > 0 and min(row["gain"], row["gain_greedy"]) >= minimum),
        bool(len(gains) > 1 and (gains > 0).all()),
        bool(causes),
        None,
    )
    return [
        Criterion(told["name"], told["measured"].format_map(values), each)
        for told, each in zip(_TEXTS["criteria"], met, strict=True)
    ]


def _found(verdicts: pd.DataFrame, *statuses: str) -> pd.DataFrame:
    """Those of causes with one of these statuses."""
    return verdicts[(verdicts["kind"] == "cause") & verdicts["status"].isin(statuses)]
