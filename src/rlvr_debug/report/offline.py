"""What a page needs that needs nothing beside itself: its templates, its styles, and the policy that it keeps to."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import jinja2

_TEMPLATES = Path(__file__).parent / "templates"


def source(name: str) -> str:
    """Return a file of the templates' folder as it stands."""
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
