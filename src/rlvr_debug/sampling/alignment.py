"""Two token sequences side by side: what was sampled, and what was trained on."""

import difflib
from collections.abc import Sequence

# kind (equal, delete, insert, replace), then the range in the sampled and that in the trained sequence
Edit = tuple[str, int, int, int, int]


def edits(sampled: Sequence[int], trained: Sequence[int]) -> list[Edit]:
    """What makes `trained` of `sampled`, in order. Together the ranges cover both sequences."""
    if sampled == trained:
        return [("equal", 0, len(sampled), 0, len(trained))] if sampled else []
    matcher = difflib.SequenceMatcher(None, sampled, trained, autojunk=False)
    return [(kind, a, b, c, d) for kind, a, b, c, d in matcher.get_opcodes()]


def carried(sampled: Sequence[int], trained: Sequence[int]) -> list[int | None]:
    """Return for each token of `trained` its place in `sampled`, None where it was added."""
    places: list[int | None] = [None] * len(trained)
    for kind, a, b, c, d in edits(sampled, trained):
        if kind == "equal":
            places[c:d] = range(a, b)
    return places
