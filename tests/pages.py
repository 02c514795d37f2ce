"""README.md and the pages of docs/, for the tests: their text, blocks, inline code and commands.

A command is a line of a fenced `sh` block, or inline code that begins with a tool.
"""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]+)`")
_TOOLS = "make|python|snakemake|dvc|rlvr-debug|git|pip|accelerate|vf-eval"
_COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(?:{_TOOLS}) (?=[\w.-])")


def pages() -> dict[str, str]:
    """Return each page's text by its path."""
    files = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}


def commands_of(page: str) -> Iterator[str]:
    """Yield each command in one line, without comments."""
    for language, body in BLOCK.findall(page):
        if language != "sh":
            continue
        lines = re.sub(r"\\\n\s*", "", body).splitlines()
        # where a prompt is shown, the other lines are what was answered
        shown = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        for line in shown or lines:
            if command := re.split(r"\s+# ", line)[0].strip():
                yield command
    for code in INLINE.findall(BLOCK.sub("", page)):
        if _COMMAND.match(command := " ".join(code.split())):
            yield command
