"""The study of a case that is known by what it does alone: which arms to run, and what follows from their runs.

Nothing here has a name of a fault, or of a case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from rlvr_debug.causes import (
    Intervention,
    cause_of,
    hypothesis_names,
    load_hypothesis,
    stage_of,
    variant_names,
)
from rlvr_debug.causes.unnamed import is_unnamed, unnamed_slug
from rlvr_debug.grpo.settings import STAGES
from rlvr_debug.replay.segments import SEGMENTS
from rlvr_debug.replay.variants import segments_for
from rlvr_debug.verdicts.decide import Evidence, Verdict, decide, mechanism_of
from rlvr_debug.verdicts.rule import Bar, arm_table

MOST_ARMS = 3
BAR = Bar.of(0.05, 0.1)  # as in params.yaml
# what the answer is drawn from: experiments by settings or by stages alone, or both, or all that is known
MODES = ("logs", "check", "knobs", "swaps", "experiments", "all")
_TASK = "the case's"
_FOUND = ("validated", "located_not_explained")  # verdicts that name where the cause is


def _interventions() -> dict[str, dict[str, Intervention]]:
    """What may be done about each cause, in the order in which a training step would show it.

    swap: the stages that can be wrong by it; knob: the first of its arms that changes settings of every
    environment, without a swap; of one that is about what only some cases have, none.
    """
    order = [segment.name for segment in SEGMENTS]
    causes = [slug for slug in hypothesis_names() if segments_for(slug)]
    found = {}
    for slug in sorted(causes, key=lambda each: order.index(segments_for(each)[0])):
        cause = load_hypothesis(slug)
        arms = cause.arms_on("own")
        known = [name for name in variant_names() if cause_of(name) == cause.slug]
        stages = tuple(dict.fromkeys(map(stage_of, known)))
        settings = [
            arm for arm in arms if not cause.precondition and (arm.training or arm.rollouts)
        ]
        knobs = [arm for arm in settings if "weights" not in arm.rollouts]
        kinds = {"swap": Intervention("swap", swap=stages)} if stages else {}
        if knobs:
            kinds["knob"] = replace(knobs[0], swap=())
        found[cause.slug] = kinds
    return found


_INTERVENTIONS = _interventions()


@dataclass(frozen=True)
class Arm:
    """design: case, control, repair (the case with these stages or settings put right), or alone (the
    control with these stages or settings as in the case). kind: swap, knob or part. training, rollouts: values, or Times
    of the case's. settings: those that are as in the control, or alone as in the case, each with its block."""

    name: str
    design: str
    hypothesis: str = ""
    kind: str = ""
    swap: tuple[str, ...] = ()
    training: Mapping[str, Any] = field(default_factory=dict)
    rollouts: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()


CASE, CONTROL = Arm("case", "case"), Arm("control", "control")


@dataclass(frozen=True)
class Outcome:
    """What one run shows. sampled, greedy: held-out reward; log: a digest of its metrics, step by step."""

    seed: int
    sampled: float
    greedy: float
    log: str


@dataclass(frozen=True)
class Answer:
    """ranked: by mode, causes from the most likely on; none: none of the hypotheses. verdicts: of all that
    is known; inconclusive: none is validated, and one may be. effects: by arm, the effect and its interval. places: the stages and
    settings that an arm with a large effect puts right or has alone."""

    ranked: Mapping[str, tuple[str, ...]]
    verdicts: tuple[Verdict, ...]
    effects: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    places: tuple[str, ...] = ()

    @property
    def validated(self) -> tuple[str, ...]:
        return tuple(v.hypothesis for v in self.verdicts if v.status == "validated")

    @property
    def inconclusive(self) -> bool:
        return not self.validated and bool(self.ranked["all"])


def choose(
    checked: Mapping[str, Any], by_logs: Sequence[str], parts: Sequence[str] = ()
) -> list[Arm]:
    """At most MOST_ARMS arms, and for each part that they leave alone a pair of its own. checked: what the check says of
    the case; by_logs: hypotheses that the log speaks for; parts: stages and settings of the case that are not the control's.

    Of one suspect, it is mended both ways and tried alone. Of several, any of which may be a symptom of
    another or enough to stop learning by itself, each is tried alone. Of none, what the log suspects is mended,
    and after that settings in the order of a training step.
    """
    arms = _chosen(checked, by_logs)
    touched = {place for arm in arms for place in _places(arm)}
    return [*arms, *(arm for part in parts if part not in touched for arm in part_arms(part))]


def part_arms(part: str) -> tuple[Arm, Arm]:
    """Return the case with that part mended, and the control with it alone. part: a stage, or a setting with its block."""
    block, _, setting = part.rpartition(".")
    slug = unnamed_slug(setting, block)
    told: dict[str, Any] = {"swap": (part,)} if part in STAGES else {"settings": (part,)}
    mended = Arm(slug, "repair", slug, "part", **told)
    return mended, replace(mended, name=f"{slug}-alone", design="alone")


def _chosen(checked: Mapping[str, Any], by_logs: Sequence[str]) -> list[Arm]:
    suspects = _present(checked)
    knobs = [_arm(slug, "repair", "knob") for slug in suspects if "knob" in _INTERVENTIONS[slug]]
    if len(suspects) > 1:
        alone = [_arm(slug, "alone", "swap") for slug in suspects]
        return [*alone[:2], *knobs[:1], *alone[2:]][:MOST_ARMS]
    if suspects:
        [slug] = suspects
        return [_arm(slug, "repair", "swap"), *knobs, _arm(slug, "alone", "swap")][:MOST_ARMS]
    logged = [(slug, kind) for slug in by_logs for kind in ("swap", "knob")]
    settings = [(slug, "knob") for slug in _INTERVENTIONS]
    found = dict.fromkeys([*logged, *settings])
    known = [(slug, kind) for slug, kind in found if kind in _INTERVENTIONS.get(slug, ())]
    return [_arm(slug, "repair", kind) for slug, kind in known[:MOST_ARMS]]


def all_arms() -> list[Arm]:
    """Every arm that may be chosen."""
    return [
        _arm(slug, design, kind)
        for slug, known in _INTERVENTIONS.items()
        for design, kind in (("repair", "swap"), ("alone", "swap"), ("repair", "knob"))
        if kind in known
    ]


def _arm(slug: str, design: str, kind: str) -> Arm:
    told = _INTERVENTIONS[slug][kind]
    name = f"{slug}-{kind}" + ("-alone" if design == "alone" else "")
    return Arm(name, design, slug, kind, told.swap, told.training, told.rollouts)


def judge(
    checked: Mapping[str, Any],
    by_logs: Sequence[str],
    arms: Sequence[Arm],
    runs: Mapping[str, Sequence[Outcome]],
) -> Answer:
    """runs: by arm, the case and the control among them, one outcome per seed."""
    table = _table(arms, runs)
    evidence = Evidence(checked, table)
    tested = dict.fromkeys(arm.hypothesis for arm in arms)
    suspects = _present(checked)
    verdicts = decide(list(dict.fromkeys([*tested, *suspects])), evidence, BAR)
    of_kind = {kind: [a for a in arms if a.kind == kind] for kind in ("knob", "swap")}
    ranked = {
        "logs": tuple(slug for slug in by_logs if slug in _INTERVENTIONS),
        "check": tuple(suspects),
        "knobs": _by_effect(_table(of_kind["knob"], runs)),
        "swaps": _by_effect(_table(of_kind["swap"], runs)),
        "experiments": _by_effect(table),
        "all": _by_verdict(verdicts),
    }
    rows = table[table["hypothesis"] != ""].to_dict("records")
    effects = {row["arm"]: (row["effect"], row["ci_low"], row["ci_high"]) for row in rows}
    large = {row["arm"] for row in rows if row["status"] == "validated"}
    places = (place for arm in arms if arm.name in large for place in _places(arm))
    return Answer(ranked, tuple(verdicts), effects, tuple(dict.fromkeys(places)))


def _places(arm: Arm) -> list[str]:
    """The stages and settings that the arm changes."""
    values = (("training", arm.training), ("rollouts", arm.rollouts))
    return [*arm.swap, *arm.settings, *(f"{block}.{name}" for block, v in values for name in v)]


def _present(checked: Mapping[str, Any]) -> list[str]:
    """Hypotheses whose mechanism the check finds, in the order of a training step."""
    return [slug for slug in _INTERVENTIONS if mechanism_of(slug, checked).present]


def _table(arms: Sequence[Arm], runs: Mapping[str, Sequence[Outcome]]) -> pd.DataFrame:
    """Effects. An arm whose runs are to the byte those that it is compared with changes nothing.

    Of a run that counts the log and what came out: a fault at saving shows in no log.
    """
    seen = {arm: [(run.log, run.sampled, run.greedy) for run in runs[arm]] for arm in runs}
    rows = [
        {
            "arm": arm.name,
            "design": arm.design,
            "hypothesis": arm.hypothesis,
            "environment": _TASK,
            "changes": (arm.kind or arm.design) if seen[arm.name] != seen[_other(arm)] else "",
            "seed": run.seed,
            "gain": run.sampled,
            "gain_greedy": run.greedy,
        }
        for arm in (CASE, CONTROL, *arms)
        for run in runs[arm.name]
    ]
    return arm_table(pd.DataFrame(rows), _TASK, BAR)


def _other(arm: Arm) -> str:
    return CONTROL.name if arm.design == "alone" else CASE.name


def _by_effect(table: pd.DataFrame) -> tuple[str, ...]:
    """Hypotheses of which an arm has a large effect, whatever the check says."""
    own = table[~table["hypothesis"].map(is_unnamed)]
    large = own[(own["hypothesis"] != "") & (own["status"] == "validated")]
    found = large.sort_values("effect", ascending=False, kind="stable")["hypothesis"]
    return tuple(dict.fromkeys(found))


def _by_verdict(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """The validated ones by their effect, and then the located ones; after them those whose mechanism is there and whose
    effect is open."""
    order = (*_FOUND, "inconclusive", "pending")
    left = [
        v
        for v in verdicts
        if not is_unnamed(v.hypothesis)
        and (v.status in _FOUND or (v.status in order and v.mechanism == "present"))
    ]
    left.sort(key=lambda v: (order.index(v.status), -(v.effect if v.effect == v.effect else 0.0)))
    return tuple(v.hypothesis for v in left)
