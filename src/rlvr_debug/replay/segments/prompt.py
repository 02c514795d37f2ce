"""prompt: what the sampler first read is the row's prompt, rendered by the tokenizer with the tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Literal

from rlvr_debug.errors import reason
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.variants import knobs_of

SEGMENT = "prompt"


def rendered(
    record: Record,
    row: dict[str, Any],
    *,
    tools: bool = True,
    generation_prompt: bool = True,
    without: str = "",
) -> list[int]:
    """Return a row's prompt as token ids. without: the role of messages that are left out."""
    prompt = row["prompt"]
    if isinstance(prompt, str):
        ids: list[int] = record.tokenizer(prompt)["input_ids"]
        return ids
    messages = [message for message in prompt if message["role"] != without]
    return template_ids(record, messages, tools=tools, generation_prompt=generation_prompt)


def template_ids(
    record: Record, messages: list[Any], *, tools: bool = True, generation_prompt: bool = True
) -> list[int]:
    """Return messages as token ids, by the tokenizer's chat template."""
    try:
        ids: list[int] = record.tokenizer.apply_chat_template(
            messages,
            tools=(record.tools or None) if tools else None,
            add_generation_prompt=generation_prompt,
            tokenize=True,
            return_dict=False,
            **dict(record.settings.template_options),
        )
    except Exception as error:  # whatever a template says of messages
        raise NotSeen(f"the chat template cannot render the messages: {reason(error)}") from None
    return ids


def instances(record: Record, _: Network) -> Iterator[Instance]:
    if record.tokenizer is None:
        raise NotSeen("the record has no tokenizer")
    for number, generation in enumerate(record.generations):
        if not generation.calls:
            raise NotSeen("the sampler's calls were not seen")
        where, prompts, rows = (
            f"generation {number + 1}",
            generation.calls[0].prompts,
            generation.rows,
        )
        if not rows or any("prompt" not in row for row in rows):
            raise NotSeen("the rows have no column 'prompt'")
        if len(prompts) != len(rows):
            said = f"{len(prompts)} prompts, expected {len(rows)}"
            yield Instance(where, partial(_wrong_number, len(prompts)), partial(str, said))
            continue
        once = cache(partial(_rendered_row, record, rows))
        compares = [partial(_compare, rows, once, n, got) for n, got in enumerate(prompts)]
        bad = sum(compare().share > 1 for compare in compares)
        for compare in compares:
            yield Instance(where, compare, partial(str, f"{bad} of its {len(rows)} prompts"))


def _wrong_number(_: int, **__: Any) -> Gap:
    return different(1)


def _rendered_row(record: Record, rows: list[dict[str, Any]], row: int, **how: Any) -> list[int]:
    """Return a row's prompt, cut where that is asked for."""
    ids, most = rendered(record, rows[row], **how), record.settings.max_prompt_length
    if not 0 < most < len(ids):
        return ids
    return ids[-most:] if record.settings.truncation_side == "left" else ids[:most]


def _compare(
    rows: list[dict[str, Any]],
    render: Callable[..., list[int]],
    row: int,
    got: list[int],
    *,
    cut: Literal["", "left", "right"] = "",
    other: bool = False,
    extra_bos: bool = False,
    **how: Any,
) -> Gap:
    if other:
        return different(all(render(each) != got for each in range(len(rows))))
    ids = render(row, **how)
    if cut:
        part = ids[-len(got) :] if cut == "left" else ids[: len(got)]
        return different(not 0 < len(got) < len(ids) or part != got)
    return different(got != ([ids[0], *ids] if extra_bos else ids))


KNOBS = knobs_of(_compare, rendered)
