"""Those parts of the pages in docs/ that are written from the code, between marks, so that they cannot differ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from rlvr_debug.config import ROOT, load_params
from rlvr_debug.errors import InputError
from rlvr_debug.hypotheses import Hypothesis, hypothesis_names, load_hypothesis, phase_of
from rlvr_debug.hypotheses.base import PRIORITIES, Evidence
from rlvr_debug.reporting.releases import releases_text

__all__ = ["PAGES", "between", "hypotheses_text", "probes_of", "written"]


def hypotheses_text() -> str:
    """A table of all hypotheses, and what each claims, how it is tested and what follows."""
    all_of_them = sorted(
        map(load_hypothesis, hypothesis_names()),
        key=lambda each: (PRIORITIES.index(each.priority), each.slug),
    )
    arms = load_params(ROOT / "params.yaml", ROOT / "studies" / "full.yaml")["hypotheses"]
    rows = [
        "| hypothesis | number | kind | priority | phase | mechanism shown by |",
        "| --- | --- | --- | --- | --- | --- |",
        *map(_row, all_of_them),
    ]
    parts = [_described(each, arms[each.slug]["arms"]) for each in all_of_them]
    return "\n\n".join(["\n".join(rows), *parts])


def probes_of(hypothesis: Hypothesis) -> list[str]:
    """The probes that its mechanism asks for."""
    nothing = Evidence({}, pd.DataFrame())
    return re.findall(r"probe ([\w-]+) was not run", hypothesis.mechanism(nothing).text)


def _row(hypothesis: Hypothesis) -> str:
    cells = (
        f"[`{hypothesis.slug}`](#{hypothesis.slug})",
        hypothesis.number,
        hypothesis.kind,
        hypothesis.priority,
        str(phase_of(hypothesis.slug, hypothesis_names())),
        ", ".join(f"`{probe}`" for probe in probes_of(hypothesis)) or "its own gain",
    )
    return f"| {' | '.join(cells)} |"


def _described(hypothesis: Hypothesis, arms: Mapping[str, object]) -> str:
    others = ", ".join(f"[`{slug}`](#{slug})" for slug in hypothesis.alternatives)
    lines = (
        f"### {hypothesis.slug}",
        hypothesis.claim,
        f"- **Why it would explain the run.** {hypothesis.explanation}",
        f"- **Where.** {hypothesis.root_cause}",
        f"- **Tested by.** {hypothesis.methods} Arms of the full study: "
        f"{', '.join(f'`{name}`' for name in arms)}.",
        f"- **Its own diagnostic.** {hypothesis.diagnostics}",
        f"- **Validated when.** {hypothesis.success}",
        f"- **Cleared when.** {hypothesis.invalidation}",
        f"- **Then.** {hypothesis.next_steps}"
        + (f" If it is cleared, look at {others}." if others else ""),
    )
    return "\n".join([lines[0], "", lines[1], "", *lines[2:]])


# by page: the mark, and what stands between its two ends
PAGES = {
    "hypotheses.md": ("hypotheses", hypotheses_text),
    "releases.md": ("releases", releases_text),
}


def between(page: Path, mark: str) -> tuple[str, str, str]:
    """What stands before, between and after the mark's two ends. Raises InputError where one is missing."""
    begin, end = f"<!-- {mark}: begin -->\n", f"\n<!-- {mark}: end -->"
    text = page.read_text(encoding="utf-8")
    before, found, rest = text.partition(begin)
    middle, ended, after = rest.partition(end)
    if not (found and ended):
        raise InputError(f"{page}: found no marks of {mark}, expected {begin.strip()} and its end")
    return before + begin, middle, end + after


def written(page: Path) -> str:
    """The page as it should be."""
    mark, text = PAGES[page.name]
    before, _, after = between(page, mark)
    return before + text() + after
