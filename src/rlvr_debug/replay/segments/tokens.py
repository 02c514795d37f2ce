"""tool turns, tokens: the conversation between the replies, and what is trained on against what was sampled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, Literal

import torch

from rlvr_debug.replay.finding import NotSeen, Place
from rlvr_debug.replay.judge import Gap, Instance, Segment, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Batch, Generation, Record
from rlvr_debug.replay.rollouts import Rollout, batch_of, carried, rollouts, trained, trained_ids
from rlvr_debug.replay.segments.prompts import template_ids
from rlvr_debug.replay.variants import knobs_of

# --- tool turns


def _turns(record: Record, _: Network) -> Iterator[Instance]:
    """tool turns: what stands between two replies is the template's rendering of what the tools said."""
    for number, generation in enumerate(record.generations):
        if len(generation.calls) < 2:
            continue
        prompts = [row.get("prompt") for row in generation.rows]
        told = generation.messages is not None and all(isinstance(p, list) for p in prompts)
        if not prompts or not told or record.tokenizer is None:
            raise NotSeen("the conversations' messages were not seen")
        for row, rollout in enumerate(rollouts(generation, record.settings)):
            yield from _of_rollout(record, generation, rollout, row, f"generation {number + 1}")


def _of_rollout(
    record: Record, generation: Generation, rollout: Rollout, row: int, where: str
) -> Iterator[Instance]:
    assert generation.messages is not None
    between, first = blocks(generation.messages[row]), f"first in row {row + 1}"
    if not between and len(rollout.turns) > 1 and generation.batch is not None:
        # nobody said what stands between the replies: what the later one read is what is trained on
        yield Instance(where, partial(_same_between, rollout, generation.batch, row), first)
    for (start, said), turn, after in zip(between, rollout.turns, rollout.turns[1:], strict=False):
        read = turn.prompt + turn.output
        # a reply that was cut has no end that the template would write; one that was rendered again from the messages as
        # a whole is for `tokens` to say
        ended = turn.output and turn.output[-1] in record.settings.eos_ids
        if ended and after.prompt[: len(read)] == read:
            history = [*generation.rows[row]["prompt"], *generation.messages[row][:start]]
            given = (record, history, said, after.prompt[len(read) :])
            yield Instance(where, partial(_compare_turn, *given), first)


def _compare_turn(
    record: Record,
    history: list[Any],
    said: list[Any],
    got: list[int],
    *,
    cut: bool = False,
    role: str = "",
    **how: Any,
) -> Gap | None:
    if cut:
        contents = [str(message.get("content") or "") for message in said]
        shorter = (
            [{**m, "content": text[:n]} for m, text in zip(said, contents, strict=True)]
            for n in range(max(map(len, contents), default=0))
        )
        return different(all(rendered_turn(record, history, each) != got for each in shorter))
    if role:
        said = [{"role": role, "content": message.get("content")} for message in said]
    return different(rendered_turn(record, history, said, **how) != got)


def _same_between(rollout: Rollout, batch: Batch, row: int, **knobs: Any) -> Gap | None:
    """Compare the tokens between two replies, as they were read and as they are trained on."""
    if knobs:
        return None
    prompt, completion, _ = trained(batch.of_rows(torch.tensor([row])))[0]
    ids, wrote = prompt + completion, rollout.wrote
    places = [n for n in range(len(prompt), len(rollout.ids)) if not wrote[n]]
    return different(sum(ids[n : n + 1] != [rollout.ids[n]] for n in places))


def blocks(messages: list[dict[str, Any]]) -> list[tuple[int, list[dict[str, Any]]]]:
    """Return where the tools' messages between two replies begin, and these messages."""
    found: list[tuple[int, list[dict[str, Any]]]] = []
    for own, block in groupby(enumerate(messages), lambda each: each[1]["role"] == "assistant"):
        if not own:
            places, said = zip(*block, strict=True)
            found.append((places[0], [*said]))
    return found


def rendered_turn(
    record: Record,
    history: list[Any],
    said: list[Any],
    *,
    generation_prompt: bool = True,
    alone: bool = False,
    skipped: int = 0,
) -> list[int]:
    """Return the tokens between a reply and the next one. history: all messages up to that reply.

    alone: the tools' messages are rendered without what came before. skipped: tokens left out at the beginning.
    """
    if alone:
        ids = template_ids(record, said, tools=False, generation_prompt=generation_prompt)
        return ids[skipped:]
    whole = template_ids(record, [*history, *said], generation_prompt=generation_prompt)
    before = template_ids(record, history, generation_prompt=False)
    # what the template writes after the reply's end of turn is not the sampler's
    head = whole[: len(before)]
    ends = [place for place, token in enumerate(head) if token in record.settings.eos_ids]
    return whole[(ends[-1] if ends else len(before) - 1) + 1 + skipped :]


TURNS = Segment(
    "tool turns", _turns, knobs_of(_compare_turn, rendered_turn), of="calls of the sampler"
)

# --- tokens

_How = Literal[
    "other completion",
    "other row",
    "other prompt",
    "eos added",
    "cut",
    "between replies",
    "eos left out",
    "tools left out",
    "last turn",
    "retokenised",
    "retokenised without special tokens",
    "retokenised and stripped",
]


def _tokens(record: Record, _: Network) -> Iterator[Instance]:
    """tokens: the trained sequences are those that were sampled, token by token."""
    for number, generation in enumerate(record.generations):
        sampled = rollouts(generation, record.settings)
        got = trained_ids(batch_of(generation), sampled, record.settings.pad_id)
        bad = sum(ids != rollout.ids for ids, rollout in zip(got, sampled, strict=True))
        said = f"{bad} of its {len(got)} sequences"
        for row, ids in enumerate(got):
            compare = partial(_compare_tokens, record, sampled, (number, row), ids)
            yield Instance(f"generation {number + 1}", compare, said)


def _compare_tokens(
    record: Record,
    sampled: list[Rollout],
    place: tuple[int, int],
    got: list[int],
    *,
    how: _How | None = None,
    **built: Any,
) -> Gap | None:
    generation, row = place
    if built:
        again = _built(record, record.generations[generation], row, sampled[row], **built)
        return None if again is None or again == sampled[row].ids else different(got != again)
    if how:
        wanted = _other(record, sampled, row, how, got)
        return None if wanted is None else different(got not in wanted)
    start, ids = len(sampled[row].prompt), sampled[row].ids
    off = (n for n, (a, b) in enumerate(zip(got, ids, strict=False)) if a != b and n >= start)
    places = tuple(Place(generation, row, n - start) for n in off)
    return replace(different(got != ids), places=places)


def _built(
    record: Record,
    generation: Generation,
    row: int,
    rollout: Rollout,
    *,
    messages: bool,
    tools: bool = True,
    **turns: Any,
) -> list[int] | None:
    """Return the replies as they were sampled, with prompt and turns of tools rendered from `messages`.

    tools: whether the prompt has them; turns: as rendered_turn takes them. None where messages are not known.
    """
    said, rows = generation.messages, generation.rows
    if not messages or said is None or not rows or record.tokenizer is None:
        return None
    prompt = rows[row].get("prompt")
    if not isinstance(prompt, list):
        return None
    ids = list(rollout.prompt) if tools else template_ids(record, prompt, tools=False)
    between = blocks(said[row])
    for number, turn in enumerate(rollout.turns):
        ids += turn.output
        if number < len(rollout.turns) - 1 and number < len(between):
            start, block = between[number]
            history = [*prompt, *said[row][:start]]
            ids += rendered_turn(record, history, block, **turns)
    return ids


def _other(
    record: Record, sampled: list[Rollout], row: int, how: _How, got: list[int]
) -> list[list[int]] | None:
    """Return the sequences that another way of making them gives; None where it is not applicable."""
    rollout, tokenizer = sampled[row], record.tokenizer
    prompt, own = rollout.prompt, rollout.completion
    if how == "other completion":
        return [prompt + each.completion for each in sampled if each is not rollout]
    if how == "eos added":
        return [[*rollout.ids, end] for end in record.settings.eos_ids]
    if how == "other row":
        return [each.ids for each in sampled if each is not rollout]
    if how == "cut":
        inside = len(prompt) < len(got) < len(rollout.ids) - 1
        return [got] if inside and rollout.ids[: len(got)] == got else []
    if how == "between replies":
        return [got] if _same_replies(rollout, got) else []
    if how == "other prompt":
        return [got] if got[-len(own) :] == own and got != rollout.ids else []
    several = len(rollout.turns) > 1
    found: list[int] | None = None
    if how == "eos left out" and own and own[-1] in record.settings.eos_ids:
        found = own[:-1]
    if how == "tools left out" and several:
        found = [t for t, wrote in zip(own, rollout.completion_wrote, strict=True) if wrote]
    if how == "last turn" and several:
        found = rollout.turns[-1].output
    if how.startswith("retokenised") and tokenizer is not None:
        text = tokenizer.decode(own, skip_special_tokens=how != "retokenised")
        text = text.strip() if how.endswith("stripped") else text
        found = tokenizer(text, add_special_tokens=False)["input_ids"]
    return None if found is None or found == own else [prompt + found]


def _same_replies(rollout: Rollout, got: list[int]) -> bool:
    """Return whether all replies stand in the sequence, one after the other, and what is between them is different."""
    start = len(rollout.prompt)
    begins = len(rollout.turns) > 1 and got[:start] == rollout.prompt
    return begins and carried(rollout, got[start:]) is not rollout


TOKENS = Segment(
    "tokens", _tokens, knobs_of(_compare_tokens, _built, rendered_turn), of="calls of the sampler"
)
