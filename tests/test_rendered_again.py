"""The sampler's calls: replies that are rendered again for the next turn, and groups that are sampled in rounds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from rlvr_debug.checkout import ROOT
from rlvr_debug.recorders.trl.sampler_calls import trained_calls
from rlvr_debug.replay.check import check
from rlvr_debug.replay.finding import Finding, NotSeen
from rlvr_debug.replay.record import Batch, Call, Generation, Record
from rlvr_debug.replay.rollouts import carried, rollouts, rows_of
from rlvr_debug.replay.settings import Sampling, Settings
from rlvr_debug.sampling.chat import Chat
from tests.small import ROWS, small_environment

AS_RENDERED = (
    '<tool_call>\n{"name": "retrieve_documents", "arguments": {"query": "who"}}\n</tool_call>'
)
AS_WRITTEN = AS_RENDERED.replace('{"name": ', '{"name":  ')  # the template writes one space
AGAIN = "the sampler's next turn reads earlier replies rendered again"


@dataclass(frozen=True)
class Conversation:
    """Two replies with a tool's turn between them, as a server has them that renders messages."""

    prompt: list[int]
    first: list[int]
    turn: list[int]
    read: list[int]
    second: list[int]
    messages: list[dict[str, Any]]

    @property
    def trained(self) -> list[int]:
        return [*self.first, *self.turn, *self.second]


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(ROOT / "models" / "tiny")


def conversation(chat: Chat, reply: str) -> Conversation:
    environment, asked = small_environment(), small_environment().messages(ROWS[0])
    function = {"name": "retrieve_documents", "arguments": {"query": "who"}}
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "tool_calls": [{"function": function}]},
        {"role": "tool", "content": "Nobody."},
    ]
    ends = [chat.eos_id]
    return Conversation(
        prompt=chat.prompt(asked, environment.tools),
        first=chat.encode(reply) + ends,
        turn=chat.tool_turn(["Nobody."]),
        read=chat.prompt([*asked, *messages], environment.tools),
        second=chat.encode("Nobody") + ends,
        messages=[*messages, {"role": "assistant", "content": "Nobody"}],
    )


def recorded(
    chat: Chat, talks: Sequence[Conversation], trained: Sequence[list[int]] | None = None
) -> Record:
    """Return the record of conversations whose second replies came in the reverse order. trained: completions."""
    completions = [torch.tensor(each) for each in trained or [talk.trained for talk in talks]]
    marks = [
        torch.tensor(
            [1] * len(t.first)
            + [0] * (len(own) - len(t.first) - len(t.second))
            + [1] * len(t.second)
        )
        for t, own in zip(talks, completions, strict=True)
    ]
    prompts = torch.tensor([talk.prompt for talk in talks])
    order = [*range(len(talks))][::-1]
    generation = Generation(
        rows=[{"prompt": small_environment().messages(ROWS[0])} for _ in talks],
        calls=[
            Call([t.prompt for t in talks], [t.first for t in talks], rows=[*range(len(talks))]),
            Call([talks[n].read for n in order], [talks[n].second for n in order], rows=order),
        ],
        messages=[talk.messages for talk in talks],
        batch=Batch(
            prompt_ids=prompts,
            prompt_mask=torch.ones_like(prompts),
            completion_ids=pad_sequence(completions, batch_first=True, padding_value=256),
            completion_mask=pad_sequence([torch.ones_like(c) for c in completions], True),
            loss_mask=pad_sequence(marks, batch_first=True).bool(),
            advantages=torch.zeros(0),
        ),
    )
    settings = Settings(len(talks), Sampling(), 99, eos_ids=(chat.eos_id,), pad_id=256)
    return Record(
        "a server",
        settings,
        chat.tokenizer,
        small_environment().tools,
        no_model,
        generations=[generation],
    )


def no_model() -> Any:
    raise NotSeen("no model is needed for tokens")


def findings(record: Record) -> dict[str, Finding]:
    return {finding.segment: finding for finding in check(record).findings}


def test_what_is_rendered_as_it_was_written_agrees(chat: Chat) -> None:
    talk = conversation(chat, AS_RENDERED)
    assert talk.read == [*talk.prompt, *talk.first, *talk.turn]
    found = findings(recorded(chat, [talk, talk]))
    for segment in ("prompt", "tool turns", "tokens", "loss mask"):
        assert found[segment].status == "agrees", found[segment]


def test_a_reply_that_is_rendered_otherwise_deviates_in_its_tokens_and_is_named(chat: Chat) -> None:
    same, other = (conversation(chat, text) for text in (AS_RENDERED, AS_WRITTEN))
    found = findings(recorded(chat, [same, other]))
    assert found["tokens"].status == "deviates"
    assert AGAIN in [name.name for name in found["tokens"].names]
    assert found["tokens"].note.endswith("1 of its 2 sequences")
    # it is no fault of the turns, nor of the mask, which counts what the sampler wrote
    assert found["tool turns"].status == found["loss mask"].status == "agrees"


def test_the_names_tell_a_turn_without_its_header_from_replies_rendered_again(chat: Chat) -> None:
    talk = conversation(chat, AS_WRITTEN)
    header = chat.encode(chat.generation_prompt())
    alone = [*talk.first, *talk.turn[1 : -len(header)], *talk.second]
    found = findings(recorded(chat, [talk, talk], [alone, alone]))["tokens"]
    names = [name.name for name in found.names]
    assert "turns of tools are rendered alone and without generation prompt" in names
    assert AGAIN not in names


def test_a_prompt_without_the_tools_is_named_and_every_variant_of_it_can_be_tried(
    chat: Chat,
) -> None:
    record = recorded(chat, [conversation(chat, AS_RENDERED)] * 2)
    [generation] = record.generations
    asked = chat.prompt(small_environment().messages(ROWS[0]), [])
    first, second = generation.calls
    generation.calls = [replace(first, prompts=[asked, asked]), second]
    found = findings(record)["prompt"]
    assert found.status == "deviates", found
    assert "rendered without the tools" in [name.name for name in found.names]


def test_a_mask_that_counts_the_tool_s_turn_deviates_whatever_was_rendered(chat: Chat) -> None:
    talk = conversation(chat, AS_WRITTEN)
    record = recorded(chat, [talk, talk])
    [generation] = record.generations
    assert generation.batch is not None
    counted = generation.batch.completion_mask.bool()
    generation.batch = replace(generation.batch, loss_mask=counted)
    found = findings(record)["loss mask"]
    assert found.status == "deviates"
    assert "tool tokens" in found.note


def test_without_its_rows_such_a_call_continues_nothing(chat: Chat) -> None:
    record = recorded(chat, [conversation(chat, AS_WRITTEN)] * 2)
    [generation] = record.generations
    generation.calls[1].rows.clear()
    with pytest.raises(NotSeen, match="does not continue an earlier one"):
        rollouts(generation, record.settings)


def test_a_rollout_is_carried_only_where_all_of_its_replies_stand(chat: Chat) -> None:
    talk = conversation(chat, AS_WRITTEN)
    record = recorded(chat, [talk] * 2)
    rollout = rollouts(record.generations[0], record.settings)[0]
    moved = carried(rollout, talk.trained)
    assert moved.completion == talk.trained
    assert sum(moved.wrote) == len(talk.first) + len(talk.second)
    assert carried(rollout, talk.trained[1:]) is rollout


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
    rounds = [
        Call(
            [*prompts],
            [replies[n] for _, replies in groups],
            [[-1.0] * len(r[n]) for _, r in groups],
        )
        for n in range(drawn)
    ]
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
