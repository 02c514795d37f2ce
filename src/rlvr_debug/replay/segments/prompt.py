"""prompt: what the sampler first read is the row's prompt, rendered by the tokenizer with the tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record

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
    ids: list[int] = record.tokenizer.apply_chat_template(
        messages,
        tools=(record.tools or None) if tools else None,
        add_generation_prompt=generation_prompt,
        tokenize=True,
        return_dict=False,
        **dict(record.settings.template_options),
    )
    return ids


def instances(record: Record, _: Network) -> Iterator[Instance]:
    if record.tokenizer is None:
        raise NotSeen("the record has no tokenizer")
    for number, generation in enumerate(record.generations):
        if not generation.calls:
            raise NotSeen("the sampler's calls were not seen")
        prompts = generation.calls[0].prompts
        if len(prompts) != len(generation.rows):
            yield Instance(
                f"generation {number + 1}",
                lambda **_: different(1),
                lambda a=len(prompts), b=len(generation.rows): f"{a} prompts, expected {b}",  # type: ignore[misc]
            )
            continue
        cache: dict[Any, list[int]] = {}

        def compare(
            row: int, got: list[int], cut: str = "", other: bool = False, **how: Any
        ) -> Gap:
            rows = generation.rows
            if cut:
                whole = rendered(record, rows[row])
                inside = 0 < len(got) < len(whole)
                part = whole[-len(got) :] if cut == "left" else whole[: len(got)]
                return different(not (inside and part == got))
            if other:
                return different(all(rendered(record, each) != got for each in rows))
            key = (str(rows[row]["prompt"]), *sorted(how.items()))
            if key not in cache:
                extra = how.pop("extra_bos", False)
                ids = rendered(record, rows[row], **how)
                cache[key] = [ids[0], *ids] if extra else ids
            return different(cache[key] != got)

        bad = [n for n, got in enumerate(prompts) if compare(n, got).share > 1]
        for row, got in enumerate(prompts):

            def of_row(row: int = row, got: list[int] = got, **knobs: Any) -> Gap:
                return compare(row, got, **knobs)

            yield Instance(
                f"generation {number + 1}",
                of_row,
                lambda bad=bad, count=len(prompts): f"{len(bad)} of its {count} prompts",  # type: ignore[misc]
            )
