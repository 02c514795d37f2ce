"""What is measured with logs of kinds of mistakes and with packages that train with GRPO."""

import json
import re
import shlex
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

from benchmarks.faults.case import stages_of
from benchmarks.mistakes.kinds import HELD_OUT, Kind, load_kinds
from benchmarks.mistakes.public import PUBLIC, Public, counts, read_public
from benchmarks.mistakes.score import (
    HAVE,
    RESULTS,
    Answer,
    answers,
    fitted,
    fitted_on,
    kind_of,
    read_lines,
    reliability,
    row,
    score,
)
from lab.releases import costs
from lab.releases.defects import COSTS, Defect, defects, wrong
from lab.releases.packages import (
    Said,
    checked_package,
    in_order,
    packages,
    packages_text,
    read_said,
    unexpected,
)
from rlvr_debug.causes import hypothesis_names
from rlvr_debug.checkout import ROOT
from rlvr_debug.diagnosis.checks import WEIGHTS
from rlvr_debug.errors import InputError
from rlvr_debug.recorders.trl.reward_calls import RewardWatch
from rlvr_debug.recorders.trl.seams import Seams
from rlvr_debug.recorders.trl.settings import _said

KINDS = load_kinds()


def said(kind: Kind, *causes: tuple[str, float]) -> Answer:
    return Answer(kind, 0, causes)


def test_a_kind_counts_once_and_what_does_not_stand_out_is_neither_right_nor_blame() -> None:
    one = Kind("one", ("kl-penalty",), 0)
    two = Kind("two", ("reward-signal",), 0)
    well = Kind("well", (), 0)
    found = score(
        [
            said(one, ("kl-penalty", 0.9)),
            said(one, ("gradient-explosion", 0.6), ("kl-penalty", 0.5)),
            said(two, ("reward-signal", 0.4)),
            said(well, ("kl-penalty", 0.7)),
            said(well, ("kl-penalty", 0.3)),
            said(well),
        ]
    )
    assert (found.kinds, found.first[0], found.other) == (2, 0.25, 0.25)
    assert (found.healthy, found.blamed) == (3, 1)


def test_reliability_counts_the_first_cause_of_logs_that_nothing_was_fitted_on() -> None:
    new = Kind("new", ("kl-penalty",), HELD_OUT)
    known = Kind("known", ("kl-penalty",), 0)
    answered = [
        said(new, ("kl-penalty", 0.95)),
        said(new, ("reward-signal", 0.95), ("kl-penalty", 0.9)),
        said(known, ("reward-signal", 0.95)),
        said(Kind("well", (), HELD_OUT), ("kl-penalty", 0.6)),
    ]
    rows = reliability(answered).splitlines()
    assert "| 90% to 100% | 2 | 95% | 1 (50%) |" in rows
    assert "| 50% to 70% | 1 | 60% | 0 (0%) |" in rows


def test_what_a_subset_of_the_logs_is_said_to_be_is_better_than_chance_and_blames_little() -> None:
    lines = [line for line in read_lines() if line["run"] == 0][::4]
    found = score(answers(lines))
    assert found.kinds >= 20
    assert found.first[0] >= 0.5
    assert found.healthy >= 10
    assert found.blamed <= 1


def public(rises: str, causes: tuple[str, ...], first: tuple[str, str]) -> Public:
    return Public("a", "trl", rises, causes, {"first": first, "now": (rises, "")})


def test_of_public_logs_only_causes_that_are_known_can_be_right() -> None:
    logs = [
        public("yes", (), ("yes", "")),
        public("yes", (), ("no", "kl-penalty")),
        public("no", (), ("no", "kl-penalty")),
        public("no", ("kl-penalty", "gradient-explosion"), ("no", "gradient-explosion")),
        public("too few", ("reward-signal",), ("unread", "")),
    ]
    assert list(counts(logs, "first").values()) == [(4, 5), (3, 5), (1, 2), (1, 2), (0, 2), (1, 1)]
    assert list(counts(logs, "now").values()) == [(5, 5), (5, 5), (0, 2), (0, 2), (0, 2), (0, 1)]


@pytest.mark.heavy
def test_the_weights_are_those_that_the_command_makes() -> None:
    known = [x for x in read_lines() if fitted_on(kind_of(x), x["run"])]
    assert fitted(known) == pytest.approx(json.loads(WEIGHTS.read_text("utf-8")), abs=0.01)


@pytest.mark.heavy
def test_the_held_out_figure_is_that_of_the_logs() -> None:
    held_out = [line for line in read_lines() if kind_of(line).fold == HELD_OUT]
    found = row(f"held out: {HAVE[0]}", answers(held_out, HAVE[0]))
    assert found in RESULTS.read_text(encoding="utf-8").splitlines()


# --- packages that train with GRPO


def test_the_shipped_table_is_of_the_packages_that_are_pinned_and_explained() -> None:
    found = read_said()
    assert found == in_order(found)
    assert not unexpected(found)
    assert {each.name for each in packages()} == {
        f"{said.package} {said.version}, {said.what}" for said in found
    }


def test_a_deviation_that_nobody_explained_is_told() -> None:
    said = next(each for each in read_said() if each.deviates)
    other = replace(said, deviates="tokens", says="tokens: another prompt.")
    assert unexpected([said]) == []
    assert unexpected([other]) == [
        f"{said.package} {said.version}, {said.what}: tokens: another prompt.; expected {said.deviates} to deviate"
    ]
    assert len(unexpected([replace(said, deviates="", says="not run: no such module")])) == 1


def test_a_reward_function_that_is_given_completions_by_place_is_called_again_for_the_rows_that_are_kept() -> (
    None
):
    def lengths(completions: list[str], answer: list[str]) -> list[float]:
        return [len(each) + float(answer[n]) for n, each in enumerate(completions)]

    watch = RewardWatch(Seams(), again=True)
    (watched,) = watch.watched([lengths], lambda: None)
    assert watched(["a", "bb", "ccc"], answer=["1", "2", "3"]) == [2, 4, 6]
    watch.keep([2, 0], 3)
    generation: Any = SimpleNamespace(reward_calls=watch.calls)
    record: Any = SimpleNamespace(generations=[generation], notes=[])
    watch.finish(record)
    (call,) = generation.reward_calls
    assert call.columns == {"completions": ["ccc", "a"], "answer": ["3", "1"]}
    assert call.returned == call.again == call.backwards == call.alone == [6, 2]


def test_a_trainer_that_a_function_makes_is_named_as_its_class_is() -> None:
    def made() -> Any:
        class Own:
            def _compute_loss(self) -> None: ...

        return Own()

    said = _said(made()._compute_loss, "overrides `_compute_loss`", ())
    assert said.startswith("your `Own` overrides `_compute_loss` (test_mistakes.py:")
    assert _said(made, "is called", ()).startswith("your `made` is called")


def test_each_defect_is_planted_and_its_cost_known_or_says_why_not() -> None:
    assert [each.place for each in defects() if bool(each.planted) == bool(each.no_study)] == []
    known = pd.read_csv(COSTS)
    assert [*known["defect"]] == [each.place for each in defects() if each.planted]
    off = known["without"] - known["with"] - known["cost"]
    assert (off.abs() < 2e-4).all()
    assert ((known["low"] <= known["cost"]) & (known["cost"] <= known["high"])).all()


def test_the_planted_clip_has_no_gradient_where_the_package_has_none() -> None:
    [defect] = [each for each in defects() if "clip-without-minimum" in str(each.planted)]
    for stages, gradient in (
        (stages_of(defect.planted["faults"]), defect.prints),
        (stages_of([]), defect.mended),
    ):
        ratio = torch.tensor([[-1.0]]).exp().requires_grad_()
        loss = -stages.clipped_objective(ratio, torch.ones(1), 0.2, 0.2, 0.0)
        [found] = torch.autograd.grad(loss, ratio)
        # of the log-probability, as the package's lines print it
        assert round(float(found * ratio), 2) == float(gradient)


@pytest.mark.heavy
def test_a_cost_is_that_of_runs_with_and_without_the_defect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(costs, "SEEDS", range(4000, 4002))
    # the same as no defect, and one that leaves nothing to learn from
    same, frozen = (
        replace(defects()[2], planted={"training": training})
        for training in ({"clip": 0.2}, {"learning_rate": 0.0})
    )
    nothing, whole = costs.cost_rows([same, frozen])
    assert float(nothing["cost"]) == 0
    assert float(whole["with"]) == 0
    assert whole["cost"] == whole["without"] > "0.3"


@pytest.mark.releases
@pytest.mark.parametrize("defect", defects(), ids=lambda each: f"{each.name} {each.line}")
def test_a_defect_is_shown_by_the_package_alone_and_mended_by_its_patch(defect: Defect) -> None:
    try:
        assert [*wrong(defect)] == []
    except InputError as error:
        pytest.skip(str(error))


@pytest.mark.releases
@pytest.mark.parametrize(
    "package",
    # the third adapts weights in bfloat16 by some in float32; the last has no method for rewards, and a reference in its loss
    [
        *("trl 1.7.1, GFPO", "ms-swift 4.6.0, command line", "soup-cli 0.77.0, DAPO"),
        "trl 0.18.0, open-r1's",
    ],
)
def test_a_trainer_that_filters_or_lists_its_rows_is_seen_in_every_segment(package: str) -> None:
    said = checked_package(next(each for each in packages() if each.name == package))
    if said.says.startswith("not run: envs/"):
        pytest.skip(said.says)
    assert not said.unseen
    assert not unexpected([said])


@pytest.mark.parametrize("package", packages(), ids=lambda each: each.name)
def test_a_package_has_its_pins_and_a_way_to_start(package: Any) -> None:
    assert f"{package.package}=={package.version}" in package.pins
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in package.pins)
    script = shlex.split(package.start)[0]
    assert script == "-m" or (ROOT / "lab" / "releases" / "scripts" / script).is_file()


def test_the_table_says_what_a_deviation_is_and_how_much_was_not_seen() -> None:
    said = Said(
        "mine", "1", "its loss", "TRL 1", "loss: off.", "loss", "defect: twice", 17, "clip, tokens"
    )
    row = packages_text([said]).splitlines()[-1]
    assert row == "| defect | mine 1 (its loss: loss; not seen: 2) |"


def test_each_public_log_has_a_source_a_label_and_an_answer() -> None:
    table = pd.read_csv(PUBLIC, dtype=str, keep_default_na=False)
    assert table["log"].is_unique
    assert table["source"].str.startswith("https://github.com/").all()
    assert (table["rises"] == "yes").sum() >= 10
    for log in read_public():
        assert log.rises in ("yes", "no", "too few")
        assert set(log.causes) <= set(hypothesis_names())
        assert log.said["now"][0] in ("yes", "no", "too few", "unread")
