"""Conversations that a server renders again from messages: what it read is not what was written, and the check says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from rlvr_debug.checkout import ROOT
from rlvr_debug.replay.check import check
from rlvr_debug.replay.finding import Finding, NotSeen
from rlvr_debug.replay.record import Batch, Call, Generation, Record
from rlvr_debug.replay.rollouts import carried, rollouts
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
    with pytest.raises(NotSeen, match="continues no earlier one"):
        rollouts(generation, record.settings)


def test_a_rollout_is_carried_only_where_all_of_its_replies_stand(chat: Chat) -> None:
    talk = conversation(chat, AS_WRITTEN)
    record = recorded(chat, [talk] * 2)
    rollout = rollouts(record.generations[0], record.settings)[0]
    moved = carried(rollout, talk.trained)
    assert moved.completion == talk.trained
    assert sum(moved.wrote) == len(talk.first) + len(talk.second)
    assert carried(rollout, talk.trained[1:]) is rollout
