"""Lines of what a notebook or a page shows: printed text, and a table's rows with tabs between their cells."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from rlvr_debug.errors import InputError


def page_lines(path: Path, text: str) -> Iterator[str]:
    """Raises InputError for a notebook that is none."""
    if path.suffix.lower() != ".ipynb":
        yield from _html_lines(text)
        return
    try:
        cells = json.loads(text)["cells"]
        for cell in cells:
            for output in cell.get("outputs", ()):
                yield from _output_lines(output)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: expected a notebook, found: {type(error).__name__}") from None


def _output_lines(output: Mapping[str, Any]) -> Iterator[str]:
    shown = output.get("data", {})
    html = "".join(shown.get("text/html", ()))
    if "<table" in html:
        yield from _html_lines(html)
    else:
        yield from "".join(output.get("text") or shown.get("text/plain", ())).splitlines()


def _html_lines(text: str) -> list[str]:
    page = _Page()
    page.feed(text)
    page.close()
    return page.lines


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._cells: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self._cells = []
        elif tag in ("td", "th") and self._cells is not None:
            self._cells.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "tr" and self._cells is not None:
            self.lines.append("\t".join(self._cells))
            self._cells = None

    def handle_data(self, data: str) -> None:
        if self._cells is None:
            self.lines.extend(data.splitlines())
        elif self._cells:
            self._cells[-1] += " ".join(data.split())
