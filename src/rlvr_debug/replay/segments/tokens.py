"""tool turns, tokens, loss mask: the conversation between the replies, what is trained on against what was sampled, and what counts."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Annotated, Any

import torch

from rlvr_debug.blocks import OneOf
from rlvr_debug.replay.finding import Place, need, seen
from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.record import Batch, Generation, Record
from rlvr_debug.replay.rollouts import Rollout, batch_of, carried, rollouts, trained, trained_ids
from rlvr_debug.replay.segments.prompts import template_ids
from rlvr_debug.sampling.alignment import carried as places_in

# --- tool turns


def tool_turns(record: Record, _: object) -> Iterator[Instance]:
    """tool turns: what stands between two replies is the template's rendering of what the tools said."""
    for number, generation in enumerate(record.generations):
        if len(generation.calls) < 2:
            continue
        prompts = [row.get("prompt") for row in generation.rows]
        told = generation.messages is not None and all(isinstance(p, list) for p in prompts)
        known = prompts and told and record.tokenizer is not None
        need(known, "the conversations' messages were not recorded")
        for row, rollout in enumerate(rollouts(generation, record.settings)):
            yield from _of_rollout(record, generation, rollout, row, f"generation {number + 1}")


def _of_rollout(
    record: Record, generation: Generation, rollout: Rollout, row: int, where: str
) -> Iterator[Instance]:
    messages = seen(generation.messages)[row]
    between, first = blocks(messages), f"first in row {row + 1}"
    if not between and len(rollout.turns) > 1 and generation.batch is not None:
        # nobody said what stands between the replies: what the later one read is what is trained on
        yield Instance(where, partial(_same_between, rollout, generation.batch, row), first)
    for (start, said), turn, after in zip(between, rollout.turns, rollout.turns[1:], strict=False):
        read = turn.prompt + turn.output
        # a reply that was cut has no end that the template would write; one that was rendered again from the messages as
        # a whole is for `tokens` to say
        ended = turn.output and turn.output[-1] in record.settings.eos_ids
        if ended and after.prompt[: len(read)] == read:
            history = [*generation.rows[row]["prompt"], *messages[:start]]
            given = (record, history, said, after.prompt[len(read) :])
            yield Instance(where, partial(compare_turn, *given), first)


def compare_turn(
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
    """Return the tokens between a reply and the next one. alone: rendered without the history. skipped: left out at the beginning."""
    if alone:
        ids = template_ids(record, said, tools=False, generation_prompt=generation_prompt)
        return ids[skipped:]
    whole = template_ids(record, [*history, *said], generation_prompt=generation_prompt)
    before = template_ids(record, history, generation_prompt=False)
    # what the template writes after the reply's end of turn is not the sampler's
    head = whole[: len(before)]
    ends = [place for place, token in enumerate(head) if token in record.settings.eos_ids]
    return whole[(ends[-1] if ends else len(before) - 1) + 1 + skipped :]


# --- tokens

_HOW = (
    *("other completion", "other row", "other prompt", "eos added", "cut", "between replies"),
    *("eos left out", "tools left out", "last turn", "retokenised"),
    *("retokenised without special tokens", "retokenised and stripped"),
)


def tokens(record: Record, _: object) -> Iterator[Instance]:
    """tokens: the trained sequences are those that were sampled, token by token."""
    for number, generation in enumerate(record.generations):
        sampled = rollouts(generation, record.settings)
        got = trained_ids(batch_of(generation), sampled, record.settings.pad_id)
        bad = sum(ids != rollout.ids for ids, rollout in zip(got, sampled, strict=True))
        said = f"{bad} of its {len(got)} sequences"
        for row, ids in enumerate(got):
            compare = partial(compare_tokens, record, sampled, (number, row), ids)
            yield Instance(f"generation {number + 1}", compare, said)


def compare_tokens(
    record: Record,
    sampled: list[Rollout],
    place: tuple[int, int],
    got: list[int],
    *,
    how: Annotated[str, OneOf(lambda: _HOW)] = "",
    **built: Any,
) -> Gap | None:
    generation, row = place
    if built:
        again = built_ids(record, record.generations[generation], row, sampled[row], **built)
        return None if again is None or again == sampled[row].ids else different(got != again)
    if how:
        wanted = _other(record, sampled, row, how, got)
        return None if wanted is None else different(got not in wanted)
    start, ids = len(sampled[row].prompt), sampled[row].ids
    off = (n for n, (a, b) in enumerate(zip(got, ids, strict=False)) if a != b and n >= start)
    places = tuple(Place(generation, row, n - start) for n in off)
    return replace(different(got != ids), places=places)


def built_ids(
    record: Record,
    generation: Generation,
    row: int,
    rollout: Rollout,
    *,
    messages: bool,
    tools: bool = True,
    **turns: Any,
) -> list[int] | None:
    """Return the replies as sampled, with prompt and turns of tools rendered from `messages`; None where these are not known."""
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
    record: Record, sampled: list[Rollout], row: int, how: str, got: list[int]
) -> list[list[int]] | None:
    """Return the sequences that another way of making them gives; None where it is not applicable."""
    rollout, tokenizer = sampled[row], record.tokenizer
    prompt, own, several = rollout.prompt, rollout.completion, len(rollout.turns) > 1
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
        # all replies stand in it, one after the other
        begins = several and got[: len(prompt)] == prompt
        return [got] if begins and carried(rollout, got[len(prompt) :]) is not rollout else []
    if how == "other prompt":
        return [got] if got[-len(own) :] == own and got != rollout.ids else []
    found = own
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
    return None if found == own else [prompt + found]


# --- loss mask: the loss counts the tokens that the sampler wrote, and no others

_Mask = list[bool]
_PARTS = ("beginning", "kind", "prompt")
# other masks of a completion, of the tokens that the sampler wrote, the rollout, the width and the tokens that end a reply
_MASKS: Mapping[str, Callable[[_Mask, Rollout, int, Collection[int]], _Mask]] = {
    "": lambda wrote, *_: wrote,
    "cut replies counted": lambda wrote, *_: wrote,
    "cut replies not counted": lambda wrote, *_: wrote,
    "eos not counted": lambda wrote, rollout, _, ends: [
        w and token not in ends for w, token in zip(wrote, rollout.completion, strict=True)
    ],
    "tool tokens counted": lambda wrote, *_: [True] * len(wrote),
    "padding counted": lambda wrote, _, width, __: wrote + [True] * (width - len(wrote)),
    "all counted": lambda _, __, width, ___: [True] * width,
    "first token not counted": lambda wrote, *_: [False, *wrote[1:]],
    "last token not counted": lambda wrote, *_: [*wrote[:-1], False],
    "last turn": lambda wrote, rollout, *_: [
        w and n >= len(wrote) - len(rollout.turns[-1].output) for n, w in enumerate(wrote)
    ],
    "shifted": lambda wrote, *_: [*wrote[1:], False],
    "nothing": lambda wrote, *_: [False] * len(wrote),
    "turned round": lambda wrote, *_: [not w for w in wrote],
    "first turn": lambda wrote, rollout, *_: wrote[: len(rollout.turns[0].output)],
}


def loss_mask(record: Record, _: object) -> Iterator[Instance]:
    """loss mask: the loss counts the tokens that the sampler wrote, and no others."""
    for number, generation in enumerate(record.generations):
        sampled = rollouts(generation, record.settings)
        rows = trained(batch_of(generation))
        # the sequence may be another one: that is for `tokens` to say
        sampled = [_as_trained(record, each, *row) for each, row in zip(sampled, rows, strict=True)]
        masks = [counted for _, _, counted in rows]
        said = partial(_described_mask, record, sampled, masks)
        for row, (rollout, mask) in enumerate(zip(sampled, masks, strict=True)):
            compare = partial(compare_mask, record, rollout, mask, (number, row))
            yield Instance(f"generation {number + 1}", compare, said)


def _as_trained(
    record: Record, rollout: Rollout, prompt: list[int], ids: list[int], mask: list[bool]
) -> Rollout:
    """Return the rollout in the tokens of the trained completion.

    Where another sequence was trained, each reply stands where the mask fits best; of tokens that were replaced the mask is
    taken for right.
    """
    same = (prompt + ids)[: len(rollout.ids)] == rollout.ids
    if same and len(prompt) <= len(rollout.prompt):
        return replace(rollout, prompt=prompt)
    own = rollout.completion
    if ids[: len(own)] == own:
        return rollout
    aligned = _aligned(rollout, ids, mask)
    found = carried(rollout, ids)
    if found is rollout:
        return aligned
    return min(found, aligned, key=lambda each: len(_off(mask, expected(record, each, len(mask)))))


def _aligned(rollout: Rollout, ids: list[int], mask: list[bool]) -> Rollout:
    own = rollout.completion
    wrote = [
        mask[n] if place is None else rollout.completion_wrote[place]
        for n, place in enumerate(places_in(own, ids))
    ]
    start = len(rollout.prompt)
    return replace(rollout, ids=rollout.prompt + ids, wrote=rollout.wrote[:start] + wrote)


def compare_mask(
    record: Record,
    rollout: Rollout,
    got: list[bool],
    place: tuple[int, int],
    *,
    how: Annotated[str, OneOf(lambda: (*_MASKS, *_PARTS))] = "",
) -> Gap:
    if how in _PARTS:
        return different(not _fits(record, rollout, got, how))
    off = _off(got, expected(record, rollout, len(got), how))
    return replace(different(len(off)), places=tuple(Place(*place, token) for token in off))


def _fits(record: Record, rollout: Rollout, got: list[bool], how: str) -> bool:
    """Return whether a mask is the right one but for a part: what is behind a token, a kind of token, or the prompt's end."""
    right, own = expected(record, rollout, len(got)), rollout.completion
    off = _off(got, right)
    missing = bool(off) and all(right[n] and n < len(own) for n in off)
    if how == "beginning":
        return missing and any(got) and not any(got[off[0] :])
    if how == "kind":
        kinds = {own[n] for n in off} if missing else set()
        return len(kinds) == 1 and not any(
            g and own[n] in kinds for n, g in enumerate(got[: len(own)])
        )
    before = [*rollout.completion_wrote, True].index(True)
    return any(
        got == ([True] * n + right)[: len(got)] for n in range(1, len(rollout.prompt) + 1)
    ) or (before > 0 and got == [True] * before + right[before:])


def _off(got: list[bool], wanted: list[bool]) -> list[int]:
    return [n for n, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b]


def _described_mask(record: Record, sampled: list[Rollout], masks: list[list[bool]]) -> str:
    wrong: Counter[str] = Counter()
    for rollout, mask in zip(sampled, masks, strict=True):
        for place in _off(mask, expected(record, rollout, len(mask))):
            how = "counted" if mask[place] else "not counted"
            wrong[f"{_role(record, rollout, place)} tokens {how}"] += 1
    return ", ".join(f"{count} {what}" for what, count in wrong.items())


def expected(record: Record, rollout: Rollout, width: int, how: str = "") -> _Mask:
    """Return which tokens of a completion, [width], the loss is to count; `how` departs from that."""
    settings, own = record.settings, rollout.completion
    wrote = rollout.completion_wrote
    ended = bool(own) and own[-1] in (*settings.eos_ids, settings.pad_id)
    masks = settings.mask_truncated_completions
    if how.startswith("cut replies"):
        masks = how == "cut replies not counted"
    if masks and not ended:
        wrote = [False] * len(own)
    return (_MASKS[how](wrote, rollout, width, settings.eos_ids) + [False] * width)[:width]


def _role(record: Record, rollout: Rollout, place: int) -> str:
    own = rollout.completion
    if place >= len(own):
        return "padding"
    if not rollout.completion_wrote[place]:
        return "tool" if any(rollout.completion_wrote[:place]) else "prompt"
    return "end-of-turn" if own[place] in record.settings.eos_ids else "assistant"
