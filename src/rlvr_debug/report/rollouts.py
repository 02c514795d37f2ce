"""Recorded rollouts -> what the report's viewer shows: sampled above trained, aligned token by token.

What is computed here is what needs both sequences at once; how it looks is the viewer's (viewer.js).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rlvr_debug.errors import InputError
from rlvr_debug.files import read_jsonl
from rlvr_debug.sampling.alignment import Edit, edits

# with this many tokens the report stays far below 8 MB
_TOKENS = 60_000
_DIGITS = 4
# JSON has no infinity: what is not finite is a word
Number = float | str | None
_ROLES = {"p": "the prompt", "t": "tool results", "a": "its own replies"}


def shown_rollouts(results: Path, tables: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """Return of every trained arm the first seed's rollouts of the first and the last recorded step, as far as the budget of tokens goes.

    texts: of each token id. arms: name, what it changes, seed and rollouts of each. left_out: for their length.
    """
    texts: dict[int, str] = {}
    by_run = {
        (row["arm"], seed): _of_run(results / "runs" / place / row["arm"] / str(seed), texts)
        for row, place, seed in _first_runs(tables)
    }
    left_out, budget = 0, _TOKENS
    kept: dict[tuple[str, int], list[dict[str, Any]]] = {key: [] for key in by_run}
    for number in range(max(map(len, by_run.values()), default=0)):
        for key, rollouts in by_run.items():
            for rollout in rollouts[number : number + 1]:
                size = len(rollout["sampled_ids"]) + len(rollout["ids"])
                if size > budget:
                    left_out += 1
                else:
                    budget -= size
                    kept[key].append(rollout)
    changes = dict(zip(tables["arms"]["arm"], tables["arms"]["changes"], strict=True))
    used = {token for rs in kept.values() for r in rs for token in (*r["sampled_ids"], *r["ids"])}
    return {
        "texts": {token: texts[token] for token in sorted(used)},
        "arms": [
            {
                "arm": arm,
                "changes": changes[arm] or "nothing",
                "seed": seed,
                "rollouts": sorted(rs, key=lambda r: (r["step"], r["rollout"])),
            }
            for (arm, seed), rs in kept.items()
            if rs
        ],
        "left_out": left_out,
    }


def _first_runs(
    tables: Mapping[str, pd.DataFrame],
) -> Iterator[tuple[Mapping[Any, Any], str, int]]:
    """A row of arms.csv, its environment and its first seed; case and control before the others."""
    seeds = tables["runs"].groupby("arm")["seed"].min()
    rows = tables["arms"].to_dict("records")
    for row in sorted(rows, key=lambda row: row["arm"] not in ("case", "control")):
        if row["trained_as"] == row["arm"]:
            yield row, row["environment"], int(seeds[row["arm"]])


def _of_run(folder: Path, texts: dict[int, str]) -> list[dict[str, Any]]:
    """Of the first and the last recorded step. Adds to `texts` what its tokens say."""
    path = folder / "rollouts.jsonl"
    rows = list(read_jsonl(path))
    steps = {row["step"] for _, row in rows if "step" in row}
    rollouts = []
    for number, row in rows:
        _check(row, f"{path}:{number}")
        if row["step"] in (min(steps), max(steps)):
            for sequence in (row["sampled"], row["trained"]):
                texts.update(zip(sequence["ids"], sequence["text"], strict=True))
            rollouts.append(aligned(row))
    # a rollout of each step first: the budget may not allow them all
    return sorted(rollouts, key=lambda rollout: (rollout["rollout"], rollout["step"]))


_KEYS = ("step", "group", "rollout", "row", "reward", "advantage", "outcome", "sampled", "trained")
_OPTIONAL = ("loss", "attention", "trainer")
_COLUMNS = [
    *(("sampled", column) for column in ("ids", "text", "role", "sampler")),
    *(("trained", column) for column in ("ids", "text", "role", "sampler", *_OPTIONAL)),
]


def _check(row: Mapping[str, Any], place: str) -> None:
    """Raises InputError for a line that lacks something, or whose columns differ in length."""
    missing = [key for key in _KEYS if key not in row]
    missing += [
        f"{name}.{column}"
        for name, column in _COLUMNS
        if not isinstance(row.get(name), dict) or column not in row[name]
    ]
    if missing:
        raise InputError(f"{place}: {', '.join(missing)} missing, expected a recorded rollout")
    for name, column in _COLUMNS:
        values, count = row[name][column], len(row[name]["ids"])
        if values is None and column in _OPTIONAL:
            continue
        if values is None or len(values) != count:
            found = "null" if values is None else f"{len(values)} entries"
            raise InputError(f"{place}: {name}.{column} has {found}, expected {count}")


def aligned(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what viewer.js shows of a line of rollouts.jsonl (docs/diagnostics.md): an entry per token, the edits that make the trained sequence of the sampled one, and in words what there is to see."""
    sampled, trained = row["sampled"], row["trained"]
    changes = edits(sampled["ids"], trained["ids"])
    return {
        **{key: row[key] for key in ("step", "group", "rollout", "row")},
        "reward": _rounded(row["reward"]),
        "advantage": _rounded(row["advantage"]),
        "outcome": row["outcome"],
        "sampled_ids": sampled["ids"],
        "sampled_role": sampled["role"],
        "sampled_logprobs": [_rounded(value) for value in sampled["sampler"]],
        **{key: trained[key] for key in ("ids", "role", "loss", "attention")},
        "sampler": [_rounded(value) for value in trained["sampler"]],
        "trainer": trained["trainer"] and [_rounded(value) for value in trained["trainer"]],
        "edits": changes,
        "says": " ".join(_says(trained, changes, len(sampled["ids"]))),
    }


def _rounded(value: float | None) -> Number:
    if value is None:
        return None
    return round(value, _DIGITS) if math.isfinite(value) else str(value)


def _says(trained: Mapping[str, Any], changes: Sequence[Edit], sampled: int) -> Iterator[str]:
    missing = sum(b - a for kind, a, b, _, _ in changes if kind != "equal")
    added = sum(d - c for kind, _, _, c, d in changes if kind != "equal")
    if missing or added:
        yield (
            f"The trained sequence is not the sampled one: of {sampled} sampled tokens {missing} are missing "
            f"in training, and {added} were added."
        )
    else:
        yield "The trained sequence is the sampled one, token by token."
    role, loss, attention = trained["role"], trained["loss"], trained["attention"]
    if attention is not None:
        hidden = [_ROLES[letter] for letter in "pta" if _share(role, attention, letter) == 1]
        parts = [_ROLES[letter] for letter in "pta" if 0 < _share(role, attention, letter) < 1]
        if hidden or parts:
            said = [*hidden, *(f"a part of {part}" for part in parts)]
            yield f"When the loss is computed, the policy does not see {' and '.join(said)}."
        else:
            yield "When the loss is computed, the policy sees all of it."
    if loss is not None:
        foreign = sum(bit == "1" and letter != "a" for bit, letter in zip(loss, role, strict=True))
        own = sum(bit == "0" and letter == "a" for bit, letter in zip(loss, role, strict=True))
        if foreign:
            yield f"The loss counts {foreign} tokens that the policy did not write."
        if own:
            yield f"The loss leaves out {own} tokens that the policy wrote."


def _share(role: str, attention: str, letter: str) -> float:
    """Of the tokens of this role: the share that the policy may not attend to."""
    bits = [bit for bit, other in zip(attention, role, strict=True) if other == letter]
    return bits.count("0") / len(bits) if bits else 0.0
