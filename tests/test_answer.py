"""Each sentence of the answer is said of the studies whose tables hold it, and of no other."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_debug.report.answer import Answer, answer, fix, success_criteria
from rlvr_debug.verdicts.decide import Evidence, decide
from rlvr_debug.verdicts.rule import Bar, arm_table
from tests.check_answer import case_answer

ALPHA, MINIMUM = 0.05, 0.1
BAR = Bar.of(ALPHA, MINIMUM)
# design, hypothesis and changes of every arm that a study here may have
ARMS = {
    "case": ("case", "", "with two faults"),
    "control": ("control", "", "without two faults"),
    "random-reward": ("random_reward", "", "with random-reward"),
    "attention-mask": ("repair", "hidden-context", "without one"),
    "generation-prompt": ("repair", "sequence-mismatch", "without another"),
    "prompt-tools": ("repair", "sequence-mismatch", "without a third"),
    "kl-reversed": ("repair", "kl-penalty", "kl_beta 0.0 → 0.1; with kl-reversed"),
    "unnamed-loss-mask": ("repair", "unnamed-loss-mask", "without a fourth"),
    "one-turn": ("repair", "library-functionality", "rollouts' max_turns 4 → 1"),
    "attention-mask-alone": ("alone", "hidden-context", "with one"),
    "generation-prompt-alone": ("alone", "sequence-mismatch", "with another"),
    "prompt-tools-alone": ("alone", "sequence-mismatch", "with a third"),
    "unnamed-loss-mask-alone": ("alone", "unnamed-loss-mask", "with a fourth"),
}
SLUGS = sorted({slug for _, slug, _ in ARMS.values() if slug})


@dataclass(frozen=True)
class Ran:
    """An arm that ran: gains over its baseline by seed, sampled and greedy."""

    sampled: tuple[float, ...]
    greedy: tuple[float, ...]


def ran(mean: float, seeds: int = 3, spread: float = 0.01, greedy: float = 0.0) -> Ran:
    """greedy: what it gains more than sampled."""
    gains = tuple(mean + spread * (2 * (seed % 2) - 1) for seed in range(seeds))
    return Ran(gains, tuple(gain + greedy for gain in gains))


@dataclass(frozen=True)
class Reported:
    """A study's tables, and what is said of it."""

    arms: Mapping[str, Mapping[Any, Any]]
    verdicts: Mapping[str, Mapping[Any, Any]]
    deviating: Mapping[str, set[str]]
    ours: bool
    said: Answer
    tables: Mapping[str, pd.DataFrame]

    def learns(self, arm: str) -> bool:
        """At least the minimum, and surely more than nothing."""
        row = self.arms[arm]
        return bool(row["gain_low"] > 0 and row["gain"] >= MINIMUM)

    def fails(self, arm: str) -> bool:
        return bool(self.arms[arm]["gain_high"] < MINIMUM and not self.learns(arm))

    @property
    def causes(self) -> list[Mapping[Any, Any]]:
        return [
            row
            for row in self.verdicts.values()
            if row["kind"] == "cause" and row["status"] in ("validated", "located_not_explained")
        ]

    @property
    def better(self) -> bool:
        """Whether mending everything has a significant effect of the least size, sampled, and loses none so large greedily."""
        control = self.arms["control"]
        sampled = control["p_holm"] < ALPHA and control["effect"] >= MINIMUM
        return bool(sampled and control["effect_greedy"] > -MINIMUM)

    @property
    def as_well(self) -> bool:
        control = self.arms["control"]
        return bool(control["p_bound"] < ALPHA and control["effect_greedy"] < MINIMUM)

    def small(self, arm: str) -> bool:
        """Whether it ran and its effect is surely smaller than the minimum, either way."""
        row = self.arms.get(arm)
        return row is not None and bool(
            row["p_equivalence"] < ALPHA and abs(row["effect_greedy"]) < MINIMUM
        )

    def alone_of(self, slug: str) -> list[str]:
        return [
            f"{name}-alone"
            for name, (design, owner, _) in ARMS.items()
            if design == "repair" and owner == slug and f"{name}-alone" in self.arms
        ]

    def with_status(self, *statuses: str) -> list[Mapping[Any, Any]]:
        return [row for row in self.verdicts.values() if row["status"] in statuses]

    def sentences(self) -> list[str]:
        told = self.said
        texts = [told.case, told.figures, *told.sentences, *told.sure, told.note]
        return [said for text in texts for said in re.split(r"(?<=[.]) (?=[A-Z0-9])", text) if said]


def reported(
    gains: Mapping[str, Ran], present: tuple[str, ...] = (), trainer: str = "own"
) -> Reported:
    """Judge a study in which these arms ran, as its tables are made, and say it. present: mechanisms that the check sees."""
    columns = (
        "arm",
        "design",
        "hypothesis",
        "changes",
        "environment",
        "seed",
        "gain",
        "gain_greedy",
    )
    rows = [
        (arm, *ARMS[arm], "musique", seed, *pair)
        for arm, own in gains.items()
        for seed, pair in enumerate(zip(own.sampled, own.greedy, strict=True))
    ]
    runs = pd.DataFrame(rows, columns=list(columns)).assign(steps=20)
    arms = arm_table(runs, "musique", BAR)
    for name in ("slope", "slope_low", "slope_high"):
        arms[name] = arms["gain"] / 20
    check = case_answer(*present)
    evidence = Evidence(check, arms, runs, {})
    verdicts = pd.DataFrame([vars(each) for each in decide(SLUGS, evidence, BAR)])
    tables = {"runs": runs, "arms": arms, "verdicts": verdicts}
    told = {"case": "sick", "environment": "musique", "minimum_effect": MINIMUM, "alpha": ALPHA}
    return Reported(
        {row["arm"]: row for row in arms.to_dict("records")},
        {row["hypothesis"]: row for row in verdicts.to_dict("records")},
        {e["segment"]: set(e["causes"]) for e in check["segments"] if e["status"] == "deviates"},
        trainer == "own",
        answer(tables, {**told, "trainer": trainer}, check),
        tables,
    )


def each_stops(study: Reported) -> bool:
    """That part of each cause that its verdict is about was tried alone, and none learns; mending each was tried, in vain."""
    parts = [row["arm"] for row in study.causes]
    every = [name for row in study.causes for name in study.alone_of(row["hypothesis"])]
    return (
        len(parts) > 1
        and study.learns("control")
        and all(name.endswith("-alone") and study.fails(name) for name in parts)
        and all(study.small(name.removesuffix("-alone")) for name in every)
    )


def blamed(study: Reported, design: str, planted: bool = False) -> bool:
    """Whether a cause is blamed for an arm of that design. planted: which gives the case a fault."""
    arms = [ARMS[row["arm"]] for row in study.causes]
    return any(arm[0] == design and ("; with" in arm[2]) == planted for arm in arms)


def without(study: Reported) -> bool:
    return not study.causes


OPEN = ("inconclusive",)
# what each sentence begins with or has in it: whether the tables hold it
HOLDS: dict[str, Callable[[Reported], bool]] = {
    r"^The case sick.* learns in 20 steps": lambda s: s.learns("case"),
    r"^The case sick.* does not learn in 20 steps": lambda s: s.fails("case"),
    r"^The case sick.* may or may not learn in 20 steps": lambda s: (
        not s.learns("case") and not s.fails("case")
    ),
    r"^Held-out reward changes by": lambda _: True,
    r"^Your|^The loss|^The KL|^What .* is where it goes wrong|^Something in": lambda s: bool(
        s.causes
    ),
    r"^The run learns\.": lambda s: without(s) and s.learns("case"),
    r"^The run does not learn, and no hypothesis was tested": lambda s: (
        without(s)
        and s.fails("case")
        and len(s.with_status("pending", "not_applicable")) == len(s.verdicts)
    ),
    r"^The run does not learn, and no tested hypothesis": lambda s: (
        without(s)
        and s.fails("case")
        and len(s.with_status("pending", "not_applicable")) < len(s.verdicts)
    ),
    r"^Whether the run learns is unclear": lambda s: (
        without(s) and not s.learns("case") and not s.fails("case")
    ),
    r"^[a-z-]+: .*the healthy control with only this defect loses": lambda s: blamed(s, "alone"),
    r"^[a-z-]+: .*the case with only this mended gains": lambda s: blamed(s, "repair"),
    r"^[a-z-]+: .*the case with this fault gains": lambda s: blamed(s, "repair", planted=True),
    r"^Of \d+ hypotheses:": without,
    r"^\d+ further seeds? per arm would decide\.": lambda s: (
        without(s)
        and bool(s.with_status(*OPEN))
        and all(math.isfinite(row["further_seeds"]) for row in s.with_status(*OPEN))
    ),
    r"^\d+ further seeds? per arm would decide \d+ of the inconclusive\.": lambda s: (
        without(s)
        and len({math.isfinite(row["further_seeds"]) for row in s.with_status(*OPEN)}) == 2
    ),
    r"^Random rewards gain as well": lambda s: (
        "random-reward" in s.arms and s.learns("random-reward")
    ),
    r"^Each stops learning by itself": each_stops,
    r"^The healthy control does not learn either": lambda s: (
        without(s) and s.fails("case") and s.fails("control")
    ),
    r"^The case does as well as the healthy control": lambda s: (
        without(s) and s.as_well and not s.fails("case")
    ),
    r"^The healthy control does hardly better than the case": lambda s: (
        without(s) and s.as_well and s.fails("case") and not s.fails("control")
    ),
    r"no single cause is validated\.$": lambda s: (
        without(s)
        and s.better
        and not any(r["kind"] == "cause" for r in s.with_status(*OPEN, "partially_validated"))
    ),
    r"no single cause is validated: look at": lambda s: (
        without(s)
        and s.better
        and any(r["kind"] == "cause" for r in s.with_status(*OPEN, "partially_validated"))
    ),
    r"^The healthy control is not shown to do better": lambda s: (
        without(s) and not s.better and not s.as_well
    ),
    r"^The check of the case finds that": lambda s: (
        not s.ours and any(not causes & set(s.verdicts) for causes in s.deviating.values())
    ),
}

FLAT, LEARNS = ran(-0.01), ran(0.4)
SOME = {"case": FLAT, "control": LEARNS}
SUNK = {**SOME, "attention-mask": FLAT, "generation-prompt": FLAT}
BOTH_STOP = {**SUNK, "attention-mask-alone": FLAT, "generation-prompt-alone": FLAT}
# a study for each sentence that is to be said of some
STUDIES: dict[str, tuple[dict[str, Ran], tuple[str, ...], str]] = {
    "Each stops learning by itself": (BOTH_STOP, ("hidden-context",), "own"),
    "the case with this fault gains": ({**SOME, "kl-reversed": LEARNS}, (), "own"),
    "the case with only this mended": ({**SOME, "attention-mask": LEARNS}, (), "own"),
    "Something in loss_mask": ({**SOME, "unnamed-loss-mask": LEARNS}, (), "own"),
    "no hypothesis was tested": (SOME, (), "own"),
    "is shown to explain that": (SUNK, (), "own"),
    "The run learns": ({"case": LEARNS, "control": LEARNS}, (), "own"),
    "is unclear at": ({**SOME, "case": ran(0.05, spread=0.1)}, (), "own"),
    "Random rewards": ({**SOME, "random-reward": LEARNS}, (), "own"),
    "does not learn either": ({"case": FLAT, "control": FLAT}, (), "own"),
    "no failure to explain": ({"case": LEARNS, "control": LEARNS}, (), "own"),
    "hardly better": ({"case": ran(0.04), "control": ran(0.06, 3, 0.02)}, (), "own"),
    "cause is validated.": (SUNK, (), "own"),
    "look at hidden-context": ({**SOME, "attention-mask": ran(0.05, 2, 0.1)}, (), "own"),
    "not shown to do better": ({"case": FLAT, "control": ran(0.1, 2, 0.1)}, (), "own"),
    "would decide": ({**SUNK, "attention-mask": ran(0.0, 2, 0.06)}, (), "own"),
    "1 of the inconclusive": (
        {**SOME, "attention-mask": ran(-0.3), "kl-reversed": ran(0.05, 2, 0.1)},
        ("hidden-context",),
        "own",
    ),
    "2 seeds": ({**SOME, "control": ran(0.06, 2, 0.01)}, (), "own"),
    "4 seeds": ({"case": ran(0.02), "control": ran(0.06, 4, 0.08)}, (), "own"),
    "What kl-reversed changes": (
        {**SOME, "attention-mask": ran(0.3), "kl-reversed": LEARNS},
        ("hidden-context",),
        "own",
    ),
    "What attention-mask changes": (
        {**SOME, "attention-mask": ran(0.3), "one-turn": ran(0.5)},
        (),
        "own",
    ),
    "The check of the case finds": (SOME, ("sampler-mismatch",), "trl"),
}


def sentences_hold(study: Reported) -> None:
    """Check that every sentence holds of the tables, and that each that holds is said."""
    found = study.sentences()
    for said in found:
        assert any(re.search(pattern, said) for pattern in HOLDS), said
    for pattern, holds in HOLDS.items():
        assert any(re.search(pattern, said) for said in found) == holds(study), (pattern, found)
    assert len(study.said.sentences) == len(study.said.sure) == max(len(study.causes), 1)
    assert [fix.split(":")[0] for fix in study.said.fixes] == [
        {"validated": "Fix"}.get(study.verdicts[slug]["status"], "Try")
        for slug in study.said.causes
    ]
    effects = [study.verdicts[s]["effect"] for s in study.said.causes if "unnamed" not in s]
    assert effects == sorted(effects, reverse=True)
    for slug, said in zip(study.said.causes, study.said.sure, strict=False):
        row = study.verdicts[slug]
        assert said.startswith(f"{slug}: {row['status'].replace('_n', ', n').replace('_', ' ')}")
        assert f" {row['effect']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}] of" in said
        assert said.endswith(f"mechanism is {row['mechanism']}.")
        assert row["effect"] > 0


def criteria_hold(study: Reported) -> None:
    """Check that a fix mends a cause and that alone explains it."""
    tables = study.tables
    arm = fix(tables["arms"])
    told = success_criteria(
        tables["arms"], tables["runs"], tables["verdicts"], {"minimum_effect": MINIMUM}
    )
    trend, gain, alike, explained, full = told
    row, own = study.arms[arm], tables["runs"][tables["runs"]["arm"] == arm]
    validated = {r["hypothesis"] for r in study.causes if r["status"] == "validated"}
    assert arm != "one-turn"
    assert arm == "control" or row["effect"] >= MINIMUM
    assert explained.met == bool(validated if arm == "control" else {row["hypothesis"]} & validated)
    assert all((slug in explained.measured) <= (slug in validated) for slug in SLUGS)
    assert trend.met == (row["slope_low"] > 0)
    assert gain.met == (study.learns(arm) and row["gain_greedy"] >= MINIMUM)
    both = (own["gain"] > 0) & (own["gain_greedy"] > 0)
    assert alike.met == (len(own) > 1 and both.all())
    assert alike.measured.startswith(f"{both.sum()} of {len(own)} seeds")
    assert full.met is None


@pytest.mark.parametrize("said", STUDIES)
def test_each_sentence_is_said_of_some_study_and_holds_there(said: str) -> None:
    study = reported(*STUDIES[said])
    assert said in "\n".join([*study.sentences(), study.said.note])
    sentences_hold(study)
    criteria_hold(study)


LEVELS = st.sampled_from([-0.2, -0.01, 0.04, 0.11, 0.15, 0.4])


@st.composite
def studies(draw: st.DrawFn) -> Reported:
    """Studies in which some arms learn, some fail and some did not run, of several causes, one or none."""
    optional = draw(st.sets(st.sampled_from([name for name in ARMS if name not in SOME])))
    spread = draw(st.sampled_from([0.005, 0.01, 0.06]))
    arms = {
        name: ran(
            draw(LEVELS),
            draw(st.integers(1, 4)),
            spread,
            draw(st.sampled_from([0.0, 0.0, 0.02, -0.3])),
        )
        for name in ARMS
        if name in SOME or name in optional
    }
    present = draw(st.sets(st.sampled_from(["hidden-context", "kl-penalty", "sampler-mismatch"])))
    return reported(arms, tuple(sorted(present)), draw(st.sampled_from(["own", "own", "trl"])))


@st.composite
def studies_of_two_causes(draw: st.DrawFn) -> Reported:
    """Studies that come near to what is said of several causes."""
    level = st.sampled_from([FLAT, FLAT, FLAT, ran(0.108, spread=0.03), None])
    drawn = {name: draw(level) for name in ARMS if ARMS[name][1] and name not in SUNK}
    arms = {**BOTH_STOP, **{name: own for name, own in drawn.items() if own}}
    for name in draw(st.sets(st.sampled_from(sorted(set(BOTH_STOP) - set(SOME))), max_size=1)):
        arms[name] = ran(0.108, 5, 0.03)
    for name in draw(st.sets(st.sampled_from(["attention-mask", "generation-prompt"]), max_size=1)):
        del arms[name]
    return reported(arms, draw(st.sampled_from([(), ("hidden-context",)])))


@settings(max_examples=15)
@given(studies() | studies_of_two_causes())
def test_every_sentence_holds_of_the_tables_and_each_that_holds_is_said(study: Reported) -> None:
    sentences_hold(study)
    criteria_hold(study)
