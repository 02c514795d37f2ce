"""What a page needs that needs nothing beside itself: its templates, its styles, and the policy that it keeps to."""

import base64
import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

_TEMPLATES = Path(__file__).parent / "templates"


def source(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def inline_script(text: str) -> str:
    """Return a script as it may stand in a script element."""
    return re.sub(r"</(?=script)", r"<\\/", text, flags=re.IGNORECASE).replace("<!--", r"<\!--")


def packed(text: str) -> str:
    """Return the text as unpack.js reads it: gzip in base64. The same text gives the same bytes."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def policy(scripts: Sequence[str] = ()) -> str:
    """Return the policy by which a browser loads nothing, and runs no script but these."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    own = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {own}; base-uri 'none'; form-action 'none'"


@cache
def templates() -> jinja2.Environment:
    """Return the environment of the templates: what is written into a page is text, and a name without a value an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


# --- the page of a check


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


def check_html(answer: Mapping[str, Any]) -> str:
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
