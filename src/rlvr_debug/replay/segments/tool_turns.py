"""tool turns: what stands between two replies is the template's rendering of what the tools said."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Batch, Generation, Record
from rlvr_debug.replay.rollouts import Rollout, rollouts, trained
from rlvr_debug.replay.segments.prompt import template_ids
from rlvr_debug.replay.variants import knobs_of

SEGMENT = "tool turns"


def instances(record: Record, _: Network) -> Iterator[Instance]:
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
    between = blocks(generation.messages[row])
    if not between and len(rollout.turns) > 1 and generation.batch is not None:
        # nobody said what stands between the replies: what the later one read is what is trained on
        yield Instance(
            where,
            partial(_same_between, rollout, generation.batch, row),
            partial(str, f"first in row {row + 1}"),
        )
    eos = record.settings.eos_ids
    for (start, said), turn, after in zip(between, rollout.turns, rollout.turns[1:], strict=False):
        if not turn.output or turn.output[-1] not in eos:
            continue  # a reply that was cut has no end that the template would write
        read = turn.prompt + turn.output
        if after.prompt[: len(read)] != read:
            continue  # rendered again from the messages as a whole: `tokens` says so
        got = after.prompt[len(read) :]
        history = [*generation.rows[row]["prompt"], *generation.messages[row][:start]]
        compare = partial(_compare, record, history, said, got)
        yield Instance(where, compare, partial(str, f"first in row {row + 1}"))


def _compare(
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
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            continue
        if place and messages[place - 1]["role"] != "assistant" and found:
            found[-1][1].append(message)
        else:
            found.append((place, [message]))
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


KNOBS = knobs_of(_compare, rendered_turn)
