"""The sampler's calls: replies that are rendered again for the next turn, and groups that are sampled in rounds."""

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from rlvr_debug.checkout import ROOT
from rlvr_debug.recorders.trl.sampler_calls import trained_calls
from rlvr_debug.replay.architecture import no_model
from rlvr_debug.replay.check import check
from rlvr_debug.replay.finding import Finding, NotSeen
from rlvr_debug.replay.record import Batch, Call, Generation, Record
from rlvr_debug.replay.rollouts import carried, rollouts, rows_of
from rlvr_debug.replay.settings import Sampling, Settings
from rlvr_debug.sampling.chat import Chat
from tests.small import ROWS, small_environment
from tests.small_record import bare_record

AS_RENDERED = (
    '<tool_call>\n{"name": "retrieve_documents", "arguments": {"query": "who"}}\n</tool_call>'
)
AS_WRITTEN = AS_RENDERED.replace('{"name": ', '{"name":  ')  # the template writes one space
AGAIN = "the sampler's next turn reads earlier replies rendered again"

FUNCTION = {"name": "retrieve_documents", "arguments": {"query": "who"}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "assistant", "content": "", "tool_calls": [{"function": FUNCTION}]},
    {"role": "tool", "content": "Nobody."},
    {"role": "assistant", "content": "Nobody"},
]
environment = cache(small_environment)


@cache
def chat() -> Chat:
    return Chat(ROOT / "models" / "tiny")


def prompt(*messages: Any, tools: bool = True) -> list[int]:
    asked = [*environment().messages(ROWS[0]), *messages]
    return chat().prompt(asked, environment().tools if tools else [])


def reply(text: str) -> list[int]:
    return [*chat().encode(text), chat().eos_id]


def whole(first: str) -> list[int]:
    """Return the tokens of two replies with a tool's turn between them, as they were written."""
    return [*reply(first), *chat().tool_turn(["Nobody."]), *reply("Nobody")]


def recorded(*firsts: str, trained: list[int] | None = None) -> Record:
    """Return the record of conversations by a server that renders messages; their second replies came in the reverse order.

    firsts: the text of each first reply. trained: each one's completion.
    """
    completions = [torch.tensor(trained or whole(first)) for first in firsts]
    marks = [torch.ones_like(completion) for completion in completions]
    for first, mark in zip(firsts, marks, strict=True):
        mark[len(reply(first)) : -len(reply("Nobody"))] = 0
    count, order = len(firsts), [*range(len(firsts))]
    prompts = torch.tensor([prompt()] * count)
    generation = Generation(
        rows=[{"prompt": environment().messages(ROWS[0])} for _ in firsts],
        calls=[
            Call([prompt()] * count, [*map(reply, firsts)], rows=order),
            Call([prompt(*MESSAGES[:2])] * count, [reply("Nobody")] * count, rows=order[::-1]),
        ],
        messages=[MESSAGES] * count,
        batch=Batch(
            prompt_ids=prompts,
            prompt_mask=torch.ones_like(prompts),
            completion_ids=pad_sequence(completions, batch_first=True, padding_value=256),
            completion_mask=pad_sequence([torch.ones_like(c) for c in completions], True),
            loss_mask=pad_sequence(marks, batch_first=True).bool(),
            advantages=torch.zeros(0),
        ),
    )
    settings = Settings(count, Sampling(), 99, eos_ids=(chat().eos_id,), pad_id=256)
    told = {"tokenizer": chat().tokenizer, "tools": environment().tools, "build": no_model}
    return bare_record(settings=settings, generations=[generation], **told)


def findings(record: Record) -> dict[str, Finding]:
    return {finding.segment: finding for finding in check(record).findings}


def test_what_is_rendered_as_it_was_written_agrees() -> None:
    assert [*prompt(), *whole(AS_RENDERED)] == [*prompt(*MESSAGES[:2]), *reply("Nobody")]
    found = findings(recorded(AS_RENDERED, AS_RENDERED))
    for segment in ("prompt", "tool turns", "tokens", "loss mask"):
        assert found[segment].status == "agrees", found[segment]


def test_a_reply_that_is_rendered_otherwise_deviates_in_its_tokens_and_is_named() -> None:
    found = findings(recorded(AS_RENDERED, AS_WRITTEN))
    assert found["tokens"].status == "deviates"
    assert AGAIN in [name.name for name in found["tokens"].names]
    assert found["tokens"].note.endswith("1 of its 2 sequences")
    # it is no fault of the turns, nor of the mask, which counts what the sampler wrote
    assert found["tool turns"].status == found["loss mask"].status == "agrees"


def test_the_names_tell_a_turn_without_its_header_from_replies_rendered_again() -> None:
    header = chat().encode(chat().generation_prompt())
    turn = chat().tool_turn(["Nobody."])[1 : -len(header)]
    alone = [*reply(AS_WRITTEN), *turn, *reply("Nobody")]
    found = findings(recorded(AS_WRITTEN, AS_WRITTEN, trained=alone))["tokens"]
    names = [name.name for name in found.names]
    assert "turns of tools are rendered alone and without generation prompt" in names
    assert AGAIN not in names


def test_a_prompt_without_the_tools_is_named_and_every_variant_of_it_can_be_tried() -> None:
    record = recorded(AS_RENDERED, AS_RENDERED)
    record.generations[0].calls[0].prompts[:] = [prompt(tools=False)] * 2
    found = findings(record)["prompt"]
    assert found.status == "deviates", found
    assert "rendered without the tools" in [name.name for name in found.names]


def test_a_mask_that_counts_the_tool_s_turn_deviates_whatever_was_rendered() -> None:
    record = recorded(AS_WRITTEN, AS_WRITTEN)
    [generation] = record.generations
    assert generation.batch is not None
    generation.batch.loss_mask[:] = generation.batch.completion_mask.bool()
    found = findings(record)["loss mask"]
    assert found.status == "deviates"
    assert "tool tokens" in found.note


def test_without_its_rows_such_a_call_continues_nothing() -> None:
    record = recorded(AS_WRITTEN, AS_WRITTEN)
    record.generations[0].calls[1].rows.clear()
    with pytest.raises(NotSeen, match="does not continue an earlier one"):
        rollouts(record.generations[0], record.settings)


def test_a_rollout_is_carried_only_where_all_of_its_replies_stand() -> None:
    record, completion = recorded(AS_WRITTEN, AS_WRITTEN), whole(AS_WRITTEN)
    rollout = rollouts(record.generations[0], record.settings)[0]
    moved = carried(rollout, completion)
    assert moved.completion == completion
    assert sum(moved.wrote) == len(reply(AS_WRITTEN)) + len(reply("Nobody"))
    assert carried(rollout, completion[1:]) is rollout


# --- groups in several calls

_REPLY = st.lists(st.integers(5, 9), min_size=1, max_size=4)
_GROUPS = st.lists(
    st.tuples(st.integers(1, 4), st.lists(_REPLY, min_size=4, max_size=4)), min_size=1, max_size=3
)
END = [2]


def trained(rows: list[tuple[list[int], list[int]]], counted: list[bool]) -> Batch:
    """Return the rows as a batch. Of a row that is not counted the trainer masks every token."""
    ids = pad_sequence([torch.tensor(reply) for _, reply in rows], batch_first=True)
    mask = ids.bool() & torch.tensor(counted)[:, None]
    prompts = torch.tensor([prompt for prompt, _ in rows])
    return Batch(prompts, torch.ones_like(prompts), ids, mask, mask, torch.zeros(len(rows)))


@given(_GROUPS, st.integers(1, 3))
def test_groups_that_are_sampled_in_rounds_and_filled_up_are_one_call_of_all_rows(
    groups: list[tuple[int, list[list[int]]]], drawn: int
) -> None:
    prompts = [[number + 20, token] for number, (token, _) in enumerate(groups)]
    calibration = Call([[99, 1], [99, 2]], [[7], [8]])
    wrote = [[replies[n] for _, replies in groups] for n in range(drawn)]
    rounds = [Call([*prompts], own, [[-1.0] * len(reply) for reply in own]) for own in wrote]
    rows = [
        (prompt, replies[n] if n < drawn else END)
        for prompt, (_, replies) in zip(prompts, groups, strict=True)
        for n in range(4)
    ]
    batch = trained(rows, [n % 4 < drawn for n in range(len(rows))])
    calls, unused, _ = trained_calls([calibration, *rounds], batch)
    assert unused == 2
    assert calls[0].prompts == [prompt for prompt, _ in rows]
    assert calls[0].outputs == [reply if n % 4 < drawn else [] for n, (_, reply) in enumerate(rows)]
    filled = [n for n in range(len(rows)) if n % 4 >= drawn]
    assert rows_of(calls) == [[*range(len(rows))], filled]
    assert not any(calls[1].outputs)


def test_a_row_that_counts_and_that_no_call_wrote_leaves_the_calls_as_they_are() -> None:
    calls = [Call([[3, 4]], [[7]], [[-1.0]])]
    batch = trained([([3, 4], [7]), ([3, 4], END)], [True, True])
    assert trained_calls(calls, batch) == (calls, 0, [])


def test_rows_that_a_trainer_filters_out_are_told_apart_from_those_it_trains_on() -> None:
    one = Call([[1], [1], [2], [2]], [[5], [6], [7], [8]])
    whole = torch.ones(2, 1)
    ids = torch.tensor([[6], [7]])
    batch = Batch(torch.tensor([[1], [2]]), whole, ids, whole, whole, torch.ones(2))
    calls, unused, rows = trained_calls([one], batch)
    assert (calls[0].outputs, unused, rows) == ([[6], [7]], 2, [1, 2])


@pytest.mark.parametrize("scored", [True, False], ids=["by the trainer", "by length"])
def test_a_call_in_another_order_than_its_rows_were_scored_in_is_put_into_theirs(
    scored: bool,
) -> None:
    """A trainer that samples unique prompts by their length was said to have other prompts than its rows."""
    call = Call([[2], [1]], [[7], [6]])
    whole, ids = torch.ones(2, 1), torch.tensor([[6], [7]])
    batch = Batch(torch.tensor([[1], [2]]), whole, ids, whole, whole, torch.ones(2))
    [found], unused, _ = trained_calls([call], batch, ids.tolist() if scored else [[7], [6]])
    assert (found.prompts, unused) == ([[1], [2]] if scored else call.prompts, 0)
