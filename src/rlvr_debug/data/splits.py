"""Training and held-out rows that share neither a question nor a single-hop component.

Rows that share either belong to one group, and so do rows that a chain of such rows connects.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from rlvr_debug.data.rows import Row
from rlvr_debug.errors import InputError


@dataclass(frozen=True)
class Splits:
    train: tuple[Row, ...]
    heldout: tuple[Row, ...]


def split(rows: Sequence[Row], heldout: int, seed: int) -> Splits:
    """Hold out whole groups, `heldout` rows or a few less; the order of `rows` does not matter.

    Both splits come shuffled, group by group. Raises InputError if one would be empty.
    """
    by_id = sorted(rows, key=lambda row: row.id)
    members: dict[Hashable, list[Row]] = {}
    for label, row in zip(_labels(by_id), by_id, strict=True):
        members.setdefault(label, []).append(row)
    groups = list(members.values())
    random.Random(f"split {seed}").shuffle(groups)

    kept: list[Row] = []
    held: list[Row] = []
    for group in groups:
        (held if len(held) + len(group) <= heldout else kept).extend(group)
    sizes = sorted(map(len, groups)) or [0]
    found = (
        f"heldout is {heldout}, of {len(rows)} rows in {len(groups)} groups that share a question "
        f"or hop, each of {sizes[0]} to {sizes[-1]} rows"
    )
    if not held:
        raise InputError(f"the held-out split is empty: {found}; raise heldout or add other rows")
    if not kept:
        raise InputError(f"the train split is empty: {found}; lower heldout or add other rows")
    return Splits(tuple(kept), tuple(held))


def separate(train: Sequence[Row], heldout: Sequence[Row]) -> Splits:
    """Drop the rows of `train` that are in a group with held-out rows; the order stays.

    Raises InputError if none is left.
    """
    labels = _labels([*heldout, *train])
    taken = set(labels[: len(heldout)])
    kept = tuple(
        row for label, row in zip(labels[len(heldout) :], train, strict=True) if label not in taken
    )
    if not kept:
        raise InputError(
            f"the train split is empty: each of its {len(train)} rows shares a question or hop, "
            f"or a chain of them, with the {len(heldout)} held-out rows; change one of the files"
        )
    return Splits(kept, tuple(heldout))


def _labels(rows: Sequence[Row]) -> list[Hashable]:
    """What names each row's group: the connected components of rows and what they share."""
    # whoever runs a study imports this module, for a check that needs no SciPy
    from scipy.cluster.hierarchy import DisjointSet

    together = DisjointSet(range(len(rows)))
    for i, row in enumerate(rows):
        for key in _keys(row):
            together.add(key)
            together.merge(i, key)
    return [together[i] for i in range(len(rows))]


def _keys(row: Row) -> Iterator[tuple[str, str]]:
    yield "question", " ".join(row.question.casefold().split())
    for component in row.components:
        yield "component", component
