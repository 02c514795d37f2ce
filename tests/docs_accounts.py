"""What a command of README.md and docs/ is, and the kinds of account that the tests give of one.

A command is that of a fenced `sh` block, a line each, or inline code that begins with one of TOOLS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["BLOCK", "INLINE", "Account", "Elsewhere", "Here", "InCI", "NotHere", "commands_of"]

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]+)`")
TOOLS = ("make", "python", "snakemake", "dvc", "rlvr-debug", "git", "pip", "accelerate", "vf-eval")
_TOOL = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(?:{'|'.join(TOOLS)}) (?=[\w.-])")


def commands_of(page: str) -> Iterator[str]:
    """In one line each, without comments."""
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
        if _TOOL.match(command := " ".join(code.split())):
            yield command


@dataclass(frozen=True)
class Here:
    """Run as it stands, in a copy of the project that is a git repository of some commits.

    says: what its output holds; leaves: a file that it writes; adds: flags that make it short, after its own; heavy:
    it takes long, or says what one that is not heavy says in other words.
    """

    says: str = ""
    leaves: str = ""
    adds: str = ""
    status: int = 0
    heavy: bool = False


@dataclass(frozen=True)
class Elsewhere:
    """Run by another test. words: of the command or of what its make target runs, and of the test's file but
    for quotes and commas."""

    test: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class InCI:
    """A line of .ci/run."""


@dataclass(frozen=True)
class NotHere:
    """why: no test can run it, or it is no command to be run."""

    why: str


Account = Here | Elsewhere | InCI | NotHere
