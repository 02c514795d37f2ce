"""groups, prompt, sampling settings: what the sampler is given, and what it works with."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache, partial
from typing import Annotated, Any, Literal

from rlvr_debug.blocks import OneOf
from rlvr_debug.errors import reason
from rlvr_debug.replay.finding import NotSeen, need, seen
from rlvr_debug.replay.judge import Gap, Instance, certain, different
from rlvr_debug.replay.record import ROW_TOOLS, UNOPENED, Record
from rlvr_debug.replay.settings import Sampling

_Layout = Literal["blocks", "interleaved", "cut elsewhere", "another order", "strays"]
_FIELDS = tuple(field.name for field in fields(Sampling))


def _prompts(rows: list[dict[str, Any]]) -> list[Any]:
    need(all("prompt" in row for row in rows), "the rows have no column 'prompt'")
    return [row["prompt"] for row in rows]


# --- groups


def groups(record: Record, _: object) -> Iterator[Instance]:
    """groups: each group's rollouts are of one row."""
    drawn, settings = [], record.settings
    for number, generation in enumerate(record.generations):
        prompts = [
            str(row.get(UNOPENED, prompt))
            for row, prompt in zip(generation.rows, _prompts(generation.rows), strict=True)
        ]
        drawn.append(frozenset(prompts))
        compare = partial(compare_groups, prompts, settings.group_size)
        yield Instance(f"generation {number + 1}", compare)
    # whether all generations are of the same rows, though the data have more that were not drawn yet
    if len(drawn) < 2 or settings.first_step or not all(drawn):
        return
    if settings.data_rows >= len(drawn) * max(map(len, drawn)):
        said = f"all generations are of the same rows, of {settings.data_rows} that there are"
        same = len(set(drawn)) == 1
        yield Instance(
            "all generations", lambda layout="blocks": different(same and layout == "blocks"), said
        )


def compare_groups(prompts: list[str], size: int, *, layout: _Layout = "blocks") -> Gap:
    count = len(prompts) // size
    if layout == "cut elsewhere":
        turned = ([*prompts[n:], *prompts[:n]] for n in range(1, size))
        return different(all(compare_groups(each, size).share > 1 for each in turned))
    if layout == "another order":
        return different(any(many % size for many in Counter(prompts).values()))
    if layout == "strays":
        blocks = [prompts[n : n + size] for n in range(0, len(prompts), size)]
        return different(any(Counter(each).most_common(1)[0][1] < size - 1 for each in blocks))
    groups = [
        prompts[n * size : (n + 1) * size] if layout == "blocks" else prompts[n::count]
        for n in range(count)
    ]
    return different(sum(len(set(group)) > 1 for group in groups) + (count * size != len(prompts)))


# --- prompt


def rendered(
    record: Record,
    prompt: Any,
    *,
    tools: bool = True,
    generation_prompt: bool = True,
    without: str = "",
) -> list[int]:
    """Return a row's prompt as token ids. without: the role of messages that are left out."""
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


def first_prompts(record: Record, _: object) -> Iterator[Instance]:
    """prompt: what the sampler first read is the row's prompt, rendered by the tokenizer with the tools."""
    need(record.tokenizer is not None, "the record has no tokenizer")
    for number, generation in enumerate(record.generations):
        need(generation.calls, "the sampler's calls were not recorded")
        where, read = f"generation {number + 1}", generation.calls[0].prompts
        prompts = _prompts(generation.rows or [{}])
        if len(read) != len(prompts):
            said = f"{len(read)} prompts, expected {len(prompts)}"
            yield certain(where, 1, said)
            continue
        tools = [row.get(ROW_TOOLS, record.tools) for row in generation.rows]
        once = cache(partial(_cut, record, prompts, tools))
        compares = [partial(compare_prompt, len(prompts), once, *each) for each in enumerate(read)]
        bad = sum(compare().share > 1 for compare in compares)
        for compare in compares:
            yield Instance(where, compare, f"{bad} of its {len(prompts)} prompts")


def _cut(
    record: Record, prompts: list[Any], tools: list[Any], row: int, /, **how: Any
) -> list[int]:
    ids = rendered(replace(record, tools=tools[row]), prompts[row], **how)
    most = record.settings.max_prompt_length
    if not 0 < most < len(ids):
        return ids
    return ids[-most:] if record.settings.truncation_side == "left" else ids[:most]


def compare_prompt(
    count: int,
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
        return different(all(render(each) != got for each in range(count)))
    ids = render(row, **how)
    if cut:
        part = ids[-len(got) :] if cut == "left" else ids[: len(got)]
        return different(not 0 < len(got) < len(ids) or part != got)
    return different(got != ([ids[0], *ids] if extra_bos else ids))


# --- sampling settings


def sampling_settings(record: Record, _: object) -> Iterator[Instance]:
    """sampling settings: the sampler works with what it was asked for."""
    for number, generation in enumerate(record.generations):
        asked = record.settings_of(generation).sampling
        for call in generation.calls:
            used, off = seen(call.used, "the sampler's settings were not recorded"), {}
            for name in _FIELDS:
                one, other = getattr(asked, name), getattr(used, name)
                # a limit of 0 tokens, and no ends, are not known
                if one != other and ((one and other) or name not in ("max_new_tokens", "ends")):
                    off[name] = f"{name}: {one} asked, {other} used"
            if call.rows and used.max_new_tokens < asked.max_new_tokens:
                off.pop("max_new_tokens", None)  # of one turn of a function that makes rollouts
            compare = partial(compare_settings, [*off])
            yield Instance(f"generation {number + 1}", compare, ", ".join(off.values()))


def compare_settings(off: list[str], *, of: Annotated[str, OneOf(lambda: _FIELDS)] = "") -> Gap:
    return different(off != [of] if of else len(off))
