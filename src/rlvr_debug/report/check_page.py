"""What a check found (replay/answer.py) -> one HTML page, with the tokens that deviate in their places.

It needs nothing beside itself, and has no script. All that a model or a trainer said is text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rlvr_debug.files import write_text
from rlvr_debug.report.offline import policy, source, templates

_LONGEST = 40  # characters of a token that are shown


@dataclass(frozen=True)
class Shown:
    """A rollout that deviates. tokens: the text of each, and whether it deviates. behind: places that have no token."""

    generation: int
    row: int
    tokens: tuple[tuple[str, bool], ...]
    behind: int

    @property
    def marked(self) -> int:
        return sum(deviates for _, deviates in self.tokens)


def write_page(answer: Mapping[str, Any], path: Path) -> None:
    """Write the page of a check's answer."""
    write_text(path, check_html(answer))


def check_html(answer: Mapping[str, Any]) -> str:
    """Return the page of a check's answer."""
    page = templates().get_template("check.html.j2")
    return page.render(
        answer=answer,
        first=next((s for s in answer["segments"] if s["segment"] == answer["first"]), None),
        later=answer["later"],
        rollouts=list(_shown(answer["tokens"])),
        policy=policy(),
        style=Markup(source("check.css")),
    )


def _shown(rollouts: list[Mapping[str, Any]]) -> Iterator[Shown]:
    for each in sorted(rollouts, key=lambda each: (each["generation"], each["row"])):
        places = set(each["places"])
        tokens = tuple((_visible(text), n in places) for n, text in enumerate(each["tokens"]))
        behind = sum(place >= len(tokens) for place in places)
        yield Shown(each["generation"], each["row"], tokens, behind)


def _visible(text: str) -> str:
    """Return a token's text with its line breaks, and the blanks at its edges, to be seen."""
    inner = text.strip(" ")
    left, right = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    whole = "␣" * left + inner + "␣" * (right if inner else 0)
    whole = whole.replace("\n", "⏎").replace("\t", "⇥") or "∅"
    return whole if len(whole) <= _LONGEST else whole[: _LONGEST - 1] + "…"
