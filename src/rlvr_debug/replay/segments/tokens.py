"""tokens: the trained sequences are those that were sampled, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlvr_debug.replay.finding import Place
from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.rollouts import Rollout, batch_of, rollouts, trained

SEGMENT = "tokens"


def instances(record: Record, _: Network) -> Iterator[Instance]:
    pad = record.settings.pad_id
    for number, generation in enumerate(record.generations):
        sampled = rollouts(generation, record.settings)
        rows = trained(batch_of(generation))
        bad = sum(
            _sequence(sampled[n], prompt, completion, pad) != sampled[n].ids
            for n, (prompt, completion, _) in enumerate(rows)
        )
        for row, (prompt, completion, _) in enumerate(rows):

            def compare(
                row: int = row,
                prompt: list[int] = prompt,
                completion: list[int] = completion,
                number: int = number,
                how: str = "",
            ) -> Gap | None:
                rollout = sampled[row]
                got = _sequence(rollout, prompt, completion, pad)
                if not how:
                    wrong = got != rollout.ids
                    return Gap(
                        *(float("inf") if wrong else 0.0, float(wrong)),
                        places=_places(rollout, got, number, row),
                    )
                wanted = _other(record, sampled, row, how, got)
                return None if wanted is None else different(got not in wanted)

            yield Instance(
                f"generation {number + 1}",
                compare,
                lambda bad=bad, count=len(rows): f"{bad} of its {count} sequences",  # type: ignore[misc]
            )


def _sequence(rollout: Rollout, prompt: list[int], completion: list[int], pad: int) -> list[int]:
    """Return the trained sequence without padding: pads go from its end, but those that were sampled there."""
    rest = list(completion)
    while len(rest) > len(rollout.completion) and rest[-1] == pad:
        rest.pop()
    if rest != rollout.completion:
        while rest and rest[-1] == pad:
            rest.pop()
    return prompt + rest


def _places(rollout: Rollout, got: list[int], generation: int, row: int) -> tuple[Place, ...]:
    start = len(rollout.prompt)
    return tuple(
        Place(generation, row, place - start)
        for place, (one, other) in enumerate(zip(got, rollout.ids, strict=False))
        if one != other and place >= start
    )


def _other(
    record: Record, sampled: list[Rollout], row: int, how: str, got: list[int]
) -> list[list[int]] | None:
    """Return the sequences that another way of making them gives; None where it is not applicable."""
    rollout, tokenizer = sampled[row], record.tokenizer
    prompt, own = rollout.prompt, rollout.completion
    if how == "other row":
        return [each.ids for each in sampled if each is not rollout]
    if how == "cut":
        inside = len(prompt) < len(got) < len(rollout.ids) - 1
        return [got] if inside and rollout.ids[: len(got)] == got else []
    if how == "other prompt":
        return [got] if got[-len(own) :] == own and got != rollout.ids else []
    completions: dict[str, Any] = {
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


def _again(tokenizer: Any, ids: list[int], skip: bool, strip: bool = False) -> list[int] | None:
    if tokenizer is None:
        return None
    text = tokenizer.decode(ids, skip_special_tokens=skip)
    found: list[int] = tokenizer(text.strip() if strip else text, add_special_tokens=False)[
        "input_ids"
    ]
    return found
