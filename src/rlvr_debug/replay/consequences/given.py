"""What a run is given to learn from: its rows and prompts, and what is cut of them."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from rlvr_debug.replay.finding import Consequence, NotSeen, seen
from rlvr_debug.replay.record import UNOPENED, Record
from rlvr_debug.replay.rollouts import Rollout, rollouts
from rlvr_debug.replay.segments.prompts import template_ids

# --- rows repeated, distinct prompts, answers in prompts, limits

# columns that hold what a reward function compares with
_SOLUTIONS = ("answer", "solution", "ground_truth", "target", "label", "final_answer")
_WORDS = 100  # of a prompt, above which it may be a text that the answer is to be found in
_MOST = 0.5
_ROWS_OF_ONE = 4  # rows of one prompt, without an environment's turns, that cannot all be meant
_NEAR = 10  # tokens
_CUT = 0.2


def rows_repeated(record: Record) -> Consequence | None:
    """Measure how many generations are of rows that an earlier one was of; None where fewer than two were seen."""
    drawn = [
        frozenset(str(row.get("prompt")) for row in generation.rows)
        for generation in record.generations
        if generation.rows
    ]
    if len(drawn) < 2:
        return None
    repeated = len(drawn) - len(set(drawn))
    said = f"{repeated + 1} of {len(drawn)} generations are of the same rows"
    measured = {"generations": len(drawn), "repeated": repeated}
    return Consequence("rows repeated", measured, not repeated, said)


def distinct_prompts(record: Record) -> Consequence | None:
    """Measure how many distinct prompts the policy reads, and how many the rows have; None where tokens were not seen."""
    pairs = [*prompts_read(record)]
    if not pairs:
        return None
    tokens, texts = ({each[n] for each in pairs} for n in (0, 1))
    several = any(len(generation.calls) > 1 for generation in record.generations)
    rows = {str(sorted(row.items())) for each in record.generations for row in each.rows}
    asked = 0 if several else len(rows)
    measured = {"rows": len(pairs), "in_rows": len(texts), "in_tokens": len(tokens)}
    said = f"{len(pairs)} rows have {len(texts)} distinct prompts, and {len(tokens)} as the policy reads them"
    if one := len(texts) == 1 and asked >= _ROWS_OF_ONE:
        said += f", while {asked} of them differ in their other columns"
    return Consequence("distinct prompts", measured, len(tokens) >= len(texts) and not one, said)


def prompts_read(record: Record) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield of each row the prompt's tokens, as the policy reads them, and its text."""
    return ((ids, str(row["prompt"])) for ids, row in _rows_read(record))


def _rows_read(record: Record) -> Iterator[tuple[tuple[int, ...], Mapping[str, Any]]]:
    """Yield of each row with a prompt its tokens, as the policy reads them, and the row."""
    for generation in record.generations:
        batch = generation.batch
        if batch is None or len(batch.prompt_ids) != len(generation.rows):
            continue
        parts = (batch.prompt_ids, batch.prompt_mask, generation.rows)
        for ids, real, row in zip(*parts, strict=True):
            if "prompt" in row and len(ids):
                yield tuple(ids[real.bool()].tolist()), row


def answers_in_prompts(record: Record) -> Consequence | None:
    """Measure in how many rows the answer stands in the prompt, and in how many another row's does; None without answers."""
    told = {
        (_text(row["prompt"]), str(row[name]).strip())
        for generation in record.generations
        for row in generation.rows
        for name in [next((name for name in _SOLUTIONS if row.get(name) not in (None, "")), None)]
        if name is not None and "prompt" in row
    }
    short = [(prompt, answer) for prompt, answer in sorted(told) if len(prompt.split()) <= _WORDS]
    if len({answer for _, answer in short}) < 2:
        return None
    own = sum(_stands(answer, prompt) for prompt, answer in short) / len(short)
    others = [(p, a) for p, right in short for _, a in short if a != right]
    chance = sum(_stands(answer, prompt) for prompt, answer in others) / len(others)
    measured = {"rows": len(short), "share": own, "share_of_others": chance}
    said = f"in {own:.0%} of the rows the answer stands in the prompt (another row's answer in {chance:.0%})"
    return Consequence("answers in prompts", measured, own - chance < _MOST, said)


def _text(prompt: Any) -> str:
    """Return what a prompt says, of all its messages."""
    if not isinstance(prompt, list):
        return str(prompt)
    return "\n".join(str(m.get("content")) for m in prompt if isinstance(m, Mapping))


def _stands(answer: str, prompt: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", prompt) is not None


def header(record: Record) -> Consequence | None:
    """Measure how many prompts end with a user's turn, whole or cut, or with a reply that is to be continued and was closed.

    None where the template has no turn's end and no header; templates whose header is a turn's end (`[/INST]`) have none
    of their own.
    """
    read = {tuple(p) for g in record.generations for call in g.calls[:1] for p in call.prompts}
    end, after = _turn_end(record)
    if record.tokenizer is None or not read or not end or not after:
        return None
    texts = [record.tokenizer.decode([*each]).rstrip() for each in read]
    opened = _opened(record).partition("\n")[
        0
    ]  # a line below may open a thought, which no prompt needs
    bare = sum(text.endswith(end) or _is_cut(text, end, opened) for text in texts)
    begun = [ids for ids, row in _rows_read(record) if _ends_in_reply(row["prompt"])]
    replies = (record.tokenizer.decode([*ids]).rstrip().removesuffix(after) for ids in begun)
    closed = sum(text.rstrip().endswith(end) for text in replies)
    measured = {"prompts": len(read), "without_header": bare, "closed_replies": closed}
    said = [f"{bare} of {len(read)} prompts end without the assistant's header"] if bare else []
    if closed:
        said.append(
            f"{closed} rows end with an assistant's message, which the template closes: the policy does not continue it"
        )
    return Consequence("header", measured, not said, "; ".join(said))


def _is_cut(text: str, end: str, header: str) -> bool:
    """Return whether a prompt of several turns ends within one that is not the assistant's."""
    _, turn, last = text.rpartition(end)
    return bool(turn) and header not in last


def _opened(record: Record) -> str:
    """Return what the chat template writes behind a user's turn for the policy to go on; empty if not known."""
    asked, decode = [{"role": "user", "content": "question"}], seen(record.tokenizer).decode
    with suppress(NotSeen):
        turn, whole = (
            decode(template_ids(record, asked, generation_prompt=on)) for on in (False, True)
        )
        return str(whole.removeprefix(turn).strip())
    return ""


def _ends_in_reply(prompt: Any) -> bool:
    last = prompt[-1] if isinstance(prompt, list) and prompt else None
    return isinstance(last, Mapping) and last.get("role") == "assistant"


def _turn_end(record: Record) -> tuple[str, str]:
    """Return what the chat template writes at the end of a user's turn, and the assistant's header after it; empty if not known."""
    asked = [{"role": "user", "content": "question"}]
    both = [*asked, {"role": "assistant", "content": "reply"}]
    if record.tokenizer is None:
        return "", ""
    try:
        before, whole = (
            record.tokenizer.decode(template_ids(record, each, generation_prompt=False))
            for each in (asked, both)
        )
    except NotSeen:
        return "", ""
    if not whole.startswith(before):
        return "", ""
    return before.rpartition("question")[2].strip(), whole[len(before) :].partition("reply")[
        0
    ].strip()


def rendered_twice(record: Record) -> Consequence | None:
    """Measure how many rows have a turn's end of the chat template inside a message; None without messages or such an end."""
    end, after = _turn_end(record)
    prompts = [row.get("prompt") for each in record.generations for row in each.rows]
    texts = [_text(prompt) for prompt in prompts if isinstance(prompt, list)]
    if not texts or not end or not after:
        return None
    twice = sum(end in text for text in texts)
    said = f"{twice} of {len(texts)} rows have the template's `{end}` inside a message"
    return Consequence("rendered twice", {"rows": len(texts), "twice": twice}, not twice, said)


def tasks(record: Record) -> Consequence | None:
    """Measure in how many groups of one row the environment gives rollouts other prompts; None without such a group."""
    size, one = record.settings.group_size, []
    for rows in (generation.rows for generation in record.generations):
        if all(UNOPENED in row and "prompt" in row for row in rows):
            groups = (rows[n : n + size] for n in range(0, len(rows), size))
            read = (
                [{str(row[key]) for row in group} for key in (UNOPENED, "prompt")]
                for group in groups
            )
            one += [len(opened) == 1 for row, opened in read if len(row) == 1]
    if not one:
        return None
    off = one.count(False)
    said = f"in {off} of {len(one)} groups of one row the environment's `reset` gives rollouts other prompts"
    return Consequence("tasks of a group", {"groups": len(one), "differ": off}, not off, said)


def limits(record: Record) -> Consequence | None:
    """Measure shares that limits cut; None where no call of the sampler was seen."""
    settings, calls = record.settings, [g.calls for g in record.generations if g.calls]
    if not calls:
        return None
    prompts = [len(prompt) for first, *_ in calls for prompt in first.prompts]
    outputs = [output for each in calls for call in each for output in call.outputs if output]
    ends = {*settings.eos_ids, settings.pad_id}
    cut = [output[-1] not in ends and bool(settings.eos_ids) for output in outputs]
    found: list[Rollout] = []
    for generation in record.generations:
        with suppress(NotSeen):
            found += rollouts(generation, record.settings)
    lengths, most = [len(each.ids) for each in found], settings.cut_at or 0
    masks = [g.batch.loss_mask for g in record.generations if g.batch is not None]
    masked = [not row for mask in masks if mask.numel() for row in mask.any(1).tolist()]
    longest = max((len(each.completion) for each in found), default=0)  # a limit may be lower
    free = [
        settings.mask_truncated_completions and empty and row.completion[-1] not in ends
        for row, empty in zip(found, masked if len(masked) == len(found) else (), strict=False)
        if 0 < len(row.completion) < longest
    ]
    last = [each[-1] for g in record.generations for each in g.messages or () if each]
    measured = {
        "prompt_limit": settings.max_prompt_length,
        "longest_prompt": max(prompts, default=0),
        "share_of_prompts_near_or_over": _near(prompts, settings.max_prompt_length),
        "completion_limit": most,
        "share_of_completions_cut": _share([len(x.completion) >= most > 0 for x in found]),
        "share_of_rollouts_that_end_in_a_call": _share([bool(m.get("tool_calls")) for m in last]),
        "longest_reply": max(map(len, outputs), default=0),
        "share_of_replies_cut": _share(cut),
        "share_of_rollouts_masked": _share(masked),
        "share_of_shorter_rows_masked": _share(free),
    }
    if settings.max_context:
        measured |= {
            "context_limit": settings.max_context,
            "longest_context": max(lengths, default=0),
            "share_of_rollouts_near_or_over": _near(lengths, settings.max_context),
        }
    said = {
        "share_of_prompts_near_or_over": f"of the prompts fill their limit of {settings.max_prompt_length} tokens",
        "share_of_rollouts_near_or_over": f"of the conversations fill their limit of {settings.max_context} tokens",
        "share_of_completions_cut": f"of the completions fill their limit of {most} tokens",
        "share_of_replies_cut": "of the replies do not end by themselves: a limit cuts them",
        "share_of_rollouts_masked": "of the rollouts have no token that the loss counts",
        "share_of_shorter_rows_masked": "of the rows that are shorter than the limit are masked as truncated: no token "
        "that ends a reply ends them",
        "share_of_rollouts_that_end_in_a_call": "of the rollouts end in a call of a tool that is not answered: a limit "
        "leaves no room for it",
    }
    over = [f"{measured[n]:.0%} {text}" for n, text in said.items() if measured.get(n, 0) > _CUT]
    return Consequence("limits", measured, not over, "; ".join(over))


def _share(found: list[bool]) -> float:
    return sum(found) / max(len(found), 1)


def _near(lengths: list[int], limit: int) -> float:
    """Return the share of lengths that reach the limit, or nearly; 0: there is none."""
    return _share([limit > 0 and length >= limit - _NEAR for length in lengths])
