"""README.md and the pages of docs/, for the tests of both."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def pages() -> dict[str, str]:
    """Return each page's text by its path."""
    files = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}
