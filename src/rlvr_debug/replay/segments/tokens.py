"""tokens: the trained sequences are those that were sampled, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from rlvr_debug.replay.finding import Place
from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Generation, Record
from rlvr_debug.replay.rollouts import Rollout, batch_of, rollouts, trained_ids
from rlvr_debug.replay.segments.prompt import template_ids
from rlvr_debug.replay.segments.tool_turns import blocks, rendered_turn
from rlvr_debug.replay.variants import knobs_of

SEGMENT = "tokens"
_Completion = Literal[
    "eos left out",
    "tools left out",
    "last turn",
    "retokenised",
    "retokenised without special tokens",
    "retokenised and stripped",
]
_How = (
    Literal["other completion", "other row", "other prompt", "eos added", "cut", "between replies"]
    | _Completion
)


def instances(record: Record, _: Network) -> Iterator[Instance]:
    for number, generation in enumerate(record.generations):
        sampled = rollouts(generation, record.settings)
        got = trained_ids(batch_of(generation), sampled, record.settings.pad_id)
        bad = sum(ids != rollout.ids for ids, rollout in zip(got, sampled, strict=True))
        said = partial(str, f"{bad} of its {len(got)} sequences")
        for row, ids in enumerate(got):
            compare = partial(_compare, record, sampled, (number, row), ids)
            yield Instance(f"generation {number + 1}", compare, said)


def _compare(
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
    gap = different(got != sampled[row].ids)
    return replace(gap, places=_places(sampled[row], got, generation, row))


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


def _places(rollout: Rollout, got: list[int], generation: int, row: int) -> tuple[Place, ...]:
    start = len(rollout.prompt)
    return tuple(
        Place(generation, row, place - start)
        for place, (one, other) in enumerate(zip(got, rollout.ids, strict=False))
        if one != other and place >= start
    )


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
    completions: dict[_Completion, Any] = {
        "eos left out": lambda: own[:-1] if own and own[-1] in record.settings.eos_ids else None,
        "tools left out": lambda: (
            [token for token, wrote in zip(own, rollout.completion_wrote, strict=True) if wrote]
            if len(rollout.turns) > 1
            else None
        ),
        "last turn": lambda: rollout.turns[-1].output if len(rollout.turns) > 1 else None,
        "retokenised": lambda: _again(tokenizer, own, False),
        "retokenised without special tokens": lambda: _again(tokenizer, own, True),
        "retokenised and stripped": lambda: _again(tokenizer, own, True, strip=True),
    }
    found = completions[how]()
    return None if found is None or found == own else [prompt + found]


def _same_replies(rollout: Rollout, got: list[int]) -> bool:
    """Return whether all replies stand in the sequence, one after the other, and what is between them is different."""
    place = len(rollout.prompt)
    if len(rollout.turns) < 2 or got[:place] != rollout.prompt:
        return False
    for turn in rollout.turns:
        reply = turn.output
        starts = (n for n in range(place, len(got) + 1) if got[n : n + len(reply)] == reply)
        start = next(starts, None)
        if start is None:
            return False
        place = start + len(reply)
    return True


def _again(tokenizer: Any, ids: list[int], skip: bool, strip: bool = False) -> list[int] | None:
    if tokenizer is None:
        return None
    text = tokenizer.decode(ids, skip_special_tokens=skip)
    found: list[int] = tokenizer(text.strip() if strip else text, add_special_tokens=False)[
        "input_ids"
    ]
    return found


KNOBS = knobs_of(_compare, _built, rendered_turn)
