"""Tables of pages, in Markdown, and of results."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

Row = TypeVar("Row")


def read_csv(path: Path, kind: type[Row]) -> list[Row]:
    """Return the rows of a table that rlvr_debug.files.write_csv wrote, of a data class of texts and whole numbers."""
    numbers = [each.name for each in fields(kind) if each.type == "int"]  # type: ignore[arg-type]
    with path.open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    return [kind(**{**row, **{name: int(row[name]) for name in numbers}}) for row in rows]


def markdown(header: str, rows: Iterable[Iterable[str]]) -> str:
    """Return a table. header: the names of its columns, with bars between them."""
    rule = " | ".join(["---"] * (header.count("|") + 1))
    lines = [header, rule, *map(" | ".join, rows)]
    return "\n".join(f"| {line} |" for line in lines)


def cell(text: str) -> str:
    """Return a text as a cell of a table, in which a bar would begin the next one."""
    return text.replace("|", r"\|")
