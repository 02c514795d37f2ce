"""A program's files as a record: what they hold is checked, and what they do not is not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr_debug.checkout import ROOT
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Environment
from rlvr_debug.errors import InputError
from rlvr_debug.models.base_model import load_model
from rlvr_debug.replay.answer import answer_of
from rlvr_debug.replay.check import check
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.store import check_folder, write_record
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.sampling.rollouts import rollout
from rlvr_debug.study.arms import runs
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers.base import Run
from rlvr_debug.trainers.program_record import record_of
from rlvr_debug.trainers.recording import Recording
from tests.small import ROWS

TINY = ROOT / "models" / "tiny"
GROUP = 4
SEEN = {
    *("groups", "prompt", "sampler", "tokens", "loss mask"),
    *("rewards", "advantages", "model inputs", "effect"),
}
Line = dict[str, Any]


def environment_of() -> Environment:
    """Return an environment in which the tiny model's rollouts earn different rewards."""
    limits = {"retrieval": "golden", "top_n": 2, "max_turns": 3, "max_new_tokens": 24}
    return build_environment("musique", {**limits, "weights": {"format": 1, "f1": 1, "recall": 1}})


@pytest.fixture(scope="module")
def run() -> Run:
    params = load_params(ROOT / "params.yaml", ROOT / "studies" / "command.yaml")
    case = next(run for run in runs(params) if run.arm == "case")
    return replace(case, training=replace(case.training, group_size=GROUP, scale_rewards="group"))


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(TINY, "sdpa")


@pytest.fixture(scope="module")
def recorded(model: Any) -> tuple[Recording, Recording]:
    """What a right program leaves of one step and of two: conversations with tools, with the update of step 1."""
    base = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    after = {n: t + 1e-3 * torch.randn(t.shape, generator=generator) for n, t in base.items()}
    after["lm_head.weight"] = after["model.embed_tokens.weight"]
    first = recording(1, base, after)
    later = recording(2, after, after)
    both = replace(
        later,
        metrics=first.metrics + later.metrics,
        lines=first.lines + later.lines,
        rollouts=first.rollouts + later.rollouts,
    )
    return first, both


def recording(step: int, held: dict[str, Any], after: dict[str, Any]) -> Recording:
    chat, environment = Chat(TINY), environment_of()
    sampler = InProcessSampler(load_model(TINY, "sdpa").config.to_dict(), held, chat.ends)
    rows = [row for row in ROWS[:3] for _ in range(GROUP)]
    found = rollout(rows, environment, chat, sampler, temperature=1.0, seed=step)
    assert any(each.turns > 1 for each in found)
    rewards = torch.tensor([each.reward for each in found]).view(-1, GROUP)
    gains = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    lines = [
        {
            "step": step,
            "row": each.row.id,
            "ids": each.ids,
            "sampled": [int(bit) for bit in each.sampled],
            "logprobs": [value for segment in each.segments for value in segment.logprobs],
            "reward": each.reward,
            "advantage": gain,
            "trained": {
                "ids": each.ids,
                "loss": [int(bit) for bit in each.sampled],
                "attention": [1] * len(each.ids),
            },
        }
        for each, gain in zip(found, gains.flatten().tolist(), strict=True)
    ]
    metrics = [{"step": step, "reward": 0.5, "grad_norm": 1.0}]
    return Recording(metrics, lines, found, after, None, 1.0, environment, chat)


Change = Callable[[Line], Line]


def changed(pair: tuple[Recording, Recording], change: Change) -> tuple[Recording, Recording]:
    first, both = (
        replace(each, lines=[change(dict(line)) for line in each.lines]) for each in pair
    )
    return first, both


def statuses(record: Record) -> dict[str, str]:
    return {finding.segment: finding.status for finding in check(record).findings}


def test_what_a_right_program_wrote_agrees_and_nothing_else_is_claimed(
    run: Run, model: Any, recorded: tuple[Recording, Recording]
) -> None:
    checked = check(record_of(run, model, *recorded))
    assert checked.first is None
    assert checked.generations == 2
    found = {each.segment: each for each in checked.findings}
    assert {name for name, each in found.items() if each.status == "agrees"} == SEEN
    rest = [each for name, each in found.items() if name not in SEEN]
    assert {each.status for each in rest} == {"not seen"}
    assert {each.note for each in rest} == {"the program did not record it"}


def test_the_record_can_be_written_and_says_the_same_when_it_is_read(
    run: Run, model: Any, recorded: tuple[Recording, Recording], tmp_path: Path
) -> None:
    record = record_of(run, model, *recorded)
    write_record(record, tmp_path / "record")
    read, own = check_folder(tmp_path / "record"), answer_of(record, check(record))
    for answer in (read, own):
        for segment in answer["segments"]:
            segment.pop("seconds")
    assert read["segments"] == own["segments"]


def no_tools(chat: Chat, line: Line) -> Line:
    """Return the line with the prompt trained without its tools, which is shorter by a few tokens."""
    environment = environment_of()
    row = next(row for row in ROWS if row.id == line["row"])
    whole, cut = (chat.prompt(environment.messages(row), t) for t in (environment.tools, []))
    trained = {name: [*values] for name, values in line["trained"].items()}
    rest = len(whole)
    return {
        **line,
        "trained": {
            "ids": cut + trained["ids"][rest:],
            "loss": [0] * len(cut) + trained["loss"][rest:],
            "attention": [1] * len(cut) + trained["attention"][rest:],
        },
    }


def trained(**changes: Callable[[Line], Sequence[int]]) -> Change:
    return lambda line: {
        **line,
        "trained": {**line["trained"], **{name: of(line) for name, of in changes.items()}},
    }


FAULTS: dict[str, tuple[Change, str, str]] = {
    "the prompt has no tools": (
        lambda line: no_tools(Chat(TINY), line),
        "tokens",
        "another prompt than was sampled from",
    ),
    "the end of a reply is not counted": (
        trained(loss=lambda line: [*line["trained"]["loss"][:-1], 0]),
        "loss mask",
        "the last token is not counted",
    ),
    "the loss mask is the attention mask": (
        trained(attention=lambda line: line["trained"]["loss"]),
        "model inputs",
        "the loss mask is the attention mask",
    ),
    "advantages are negated": (
        lambda line: {**line, "advantage": -line["advantage"]},
        "advantages",
        "sign reversed",
    ),
    "the reward is another": (
        lambda line: {**line, "reward": line["reward"] + len(line["ids"]) / 100},
        "rewards",
        "not what evaluation gives",
    ),
    "the sampler keeps the first weights": (
        lambda line: {**line, "logprobs": [x + 0.1 for x in line["logprobs"]]},
        "sampler",
        "",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_program_does_wrong_is_found_in_its_segment(
    fault: str, run: Run, model: Any, recorded: tuple[Recording, Recording]
) -> None:
    change, segment, name = FAULTS[fault]
    first = check(record_of(run, model, *changed(recorded, change))).first
    assert first is not None
    assert first.segment == segment
    assert not name or name in [each.name for each in first.names]


def test_a_sampler_that_never_gets_the_update_is_named(
    run: Run, model: Any, recorded: tuple[Recording, Recording]
) -> None:
    one, two = recorded
    stale = recording(2, dict(model.state_dict()), one.weights)
    both = replace(two, lines=one.lines + stale.lines, rollouts=one.rollouts + stale.rollouts)
    first = check(record_of(run, model, one, both)).first
    assert first is not None
    assert first.segment == "sampler"
    assert "weights of the update before" in [each.name for each in first.names]


def test_weights_that_stay_where_they_were_are_no_training(
    run: Run, model: Any, recorded: tuple[Recording, Recording]
) -> None:
    one, two = (replace(each, weights=dict(model.state_dict())) for each in recorded)
    first = check(record_of(run, model, one, replace(two, lines=one.lines[:0]))).first
    assert first is not None
    assert first.segment == "effect"
    idle = [{**row, "grad_norm": 0.0} for row in one.metrics]
    still = statuses(record_of(run, model, replace(one, metrics=idle), one))
    assert still["effect"] == "not seen"


def test_a_column_that_is_left_out_is_not_seen_and_no_pass(
    run: Run, model: Any, recorded: tuple[Recording, Recording]
) -> None:
    needed = {"step", "row", "ids", "sampled", "reward"}

    def seen(*kept: str) -> set[str]:
        names = needed | set(kept)
        few = changed(recorded, lambda line: {n: v for n, v in line.items() if n in names})
        found = statuses(record_of(run, model, *few))
        return {name for name, status in found.items() if status == "agrees"}

    alone = {"groups", "prompt", "rewards", "effect"}
    assert seen() == alone
    assert seen("logprobs") == alone | {"sampler"}
    assert seen("advantage") == alone | {"advantages"}


def test_the_mask_of_the_sampled_sequence_says_nothing_of_the_trained_one(
    run: Run, model: Any, recorded: tuple[Recording, Recording]
) -> None:
    few = changed(
        recorded,
        lambda line: {n: v for n, v in line.items() if n != "trained"} | {"loss": line["sampled"]},
    )
    found = statuses(record_of(run, model, *few))
    assert found["loss mask"] == "agrees"
    assert found["tokens"] == "not seen"


def test_without_rollouts_only_the_weights_are_seen(
    run: Run, model: Any, recorded: tuple[Recording, Recording]
) -> None:
    one = replace(recorded[0], lines=[], rollouts=[])
    found = statuses(record_of(run, model, one, one))
    assert {name for name, status in found.items() if status != "not seen"} == {"effect"}


def test_another_run_of_the_same_seed_does_not_lend_its_second_step(
    run: Run, model: Any, recorded: tuple[Recording, Recording]
) -> None:
    one, two = recorded
    other = replace(two, lines=[{**line, "reward": 0.0} for line in two.lines])
    assert check(record_of(run, model, one, other)).generations == 1


def test_rollouts_that_are_no_whole_groups_are_one_line(
    run: Run, model: Any, recorded: tuple[Recording, Recording]
) -> None:
    one = replace(recorded[0], lines=recorded[0].lines[:-1], rollouts=recorded[0].rollouts[:-1])
    with pytest.raises(InputError, match="11 rollouts were recorded of a step, expected a multip"):
        record_of(run, model, one, one)
