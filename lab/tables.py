"""Tables of pages, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable


def markdown(header: str, rows: Iterable[Iterable[str]]) -> str:
    """Return a table. header: the names of its columns, with bars between them."""
    rule = " | ".join(["---"] * (header.count("|") + 1))
    lines = [header, rule, *map(" | ".join, rows)]
    return "\n".join(f"| {line} |" for line in lines)


def cell(text: str) -> str:
    """Return a text as a cell of a table, in which a bar would begin the next one."""
    return text.replace("|", r"\|")
