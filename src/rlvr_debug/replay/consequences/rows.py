"""rows repeated, distinct prompts, answers in prompts, limits: what a run is given to learn from, and what is cut of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from rlvr_debug.replay.consequences.base import Consequence
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.rollouts import Rollout, rollouts

# columns that hold what a reward function compares with
_SOLUTIONS = ("answer", "solution", "ground_truth", "target", "label", "final_answer")
_WORDS = 100  # of a prompt, above which it may be a text that the answer is to be found in
_SHARE = 0.5
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
    return Consequence(
        "rows repeated", {"generations": len(drawn), "repeated": repeated}, not repeated, said
    )


def distinct_prompts(record: Record) -> Consequence | None:
    """Measure how many distinct prompts the policy reads, and how many the rows have; None where tokens were not seen."""
    pairs = [*_rows(record)]
    if not pairs:
        return None
    tokens, texts = ({each[n] for each in pairs} for n in (0, 1))
    asked = 0 if any(len(g.calls) > 1 for g in record.generations) else _distinct_rows(record)
    measured = {"rows": len(pairs), "in_rows": len(texts), "in_tokens": len(tokens)}
    said = f"{len(pairs)} rows have {len(texts)} distinct prompts, and {len(tokens)} as the policy reads them"
    if one := len(texts) == 1 and asked >= _ROWS_OF_ONE:
        said += f", while {asked} of them differ in their other columns"
    return Consequence("distinct prompts", measured, len(tokens) >= len(texts) and not one, said)


def _distinct_rows(record: Record) -> int:
    return len({str(sorted(row.items())) for g in record.generations for row in g.rows})


def _rows(record: Record) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield of each row the prompt's tokens and its text."""
    for generation in record.generations:
        batch = generation.batch
        if batch is None or len(batch.prompt_ids) != len(generation.rows):
            continue
        for ids, real, row in zip(
            batch.prompt_ids, batch.prompt_mask, generation.rows, strict=True
        ):
            if "prompt" in row and len(ids):
                yield tuple(ids[real.bool()].tolist()), str(row["prompt"])


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
    return Consequence("answers in prompts", measured, own - chance < _SHARE, said)


def _text(prompt: Any) -> str:
    """Return what a prompt says, of all its messages."""
    if not isinstance(prompt, list):
        return str(prompt)
    return "\n".join(str(m.get("content")) for m in prompt if isinstance(m, Mapping))


def _stands(answer: str, prompt: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", prompt) is not None


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
    last = [each[-1] for g in record.generations for each in g.messages or () if each]
    measured = {
        "prompt_limit": settings.max_prompt_length,
        "longest_prompt": max(prompts, default=0),
        "share_of_prompts_near_or_over": _near(prompts, settings.max_prompt_length),
        "completion_limit": most,
        "share_of_completions_cut": _share([len(x.completion) >= most > 0 for x in found]),
        "share_of_rollouts_that_end_in_a_call": _share(
            [bool(each.get("tool_calls")) for each in last]
        ),
        "longest_reply": max(map(len, outputs), default=0),
        "share_of_replies_cut": _share(cut),
        "share_of_rollouts_masked": _share(masked),
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
