"""Write those parts of the pages in docs/ that are made from the code, between marks.

Run it as `python -m lab.pages`.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path

from lab.parameters import parameters_text, schema_text
from lab.record_format import settings_text
from lab.releases.checks import checks_text
from lab.releases.table import releases_text
from rlvr_debug.blocks import told
from rlvr_debug.causes import (
    Hypothesis,
    hypothesis_names,
    load_hypothesis,
    phase_of,
)
from rlvr_debug.causes.check import log_checks
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml, write_text
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.logs.names import known_names
from rlvr_debug.processes import run_main
from rlvr_debug.replay.segments import SEGMENTS
from rlvr_debug.replay.variants import causes_of, consequences_for, segments_for, variants_of
from rlvr_debug.study.params import load_params

__all__ = ["PAGES", "SCHEMA", "written"]

_CAUSE = read_yaml(ROOT / "src" / "rlvr_debug" / "causes" / "cause.schema.yaml")
_PRIORITIES = _CAUSE["properties"]["priority"]["enum"]


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None).parse_args()
    for name in PAGES:
        page = ROOT / "docs" / name
        write_text(page, written(page))
        print(page)
    write_text(SCHEMA, schema_text())
    print(SCHEMA)


def hypotheses_text() -> str:
    """Return a table of all hypotheses, and what each claims, how it is tested and what follows."""
    all_of_them = sorted(
        map(load_hypothesis, hypothesis_names()),
        key=lambda each: (_PRIORITIES.index(each.priority), each.slug),
    )
    arms = load_params(ROOT / "params.yaml", ROOT / "studies" / "full.yaml").arms
    rows = [
        "| hypothesis | number | kind | priority | phase | mechanism shown by |",
        "| --- | --- | --- | --- | --- | --- |",
        *map(_row, all_of_them),
    ]
    parts = [_described(each, told(arms[each.slug])) for each in all_of_them]
    return "\n\n".join(["\n".join(rows), *parts])


def _row(hypothesis: Hypothesis) -> str:
    cells = (
        f"[`{hypothesis.slug}`](#{hypothesis.slug})",
        hypothesis.number,
        hypothesis.kind,
        hypothesis.priority,
        str(phase_of(hypothesis.slug, hypothesis_names())),
        ", ".join([*segments_for(hypothesis.slug), *consequences_for(hypothesis.slug)])
        or "its own gain",
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


def checks_table() -> str:
    """Return a table of every check, in the order of equal findings."""
    lines = ["| check | speaks for | fine while | why |", "| --- | --- | --- | --- |"]
    return "\n".join(
        [*lines, *(f"| {c.name} | `{c.slug}` | {c.threshold} | {c.reason} |" for c in log_checks())]
    )


def names_table() -> str:
    """Return a table of every quantity with its unit, and its names by framework."""
    lines = ["| quantity | unit | names |", "| --- | --- | --- |"]
    for name, entry in known_names()["quantities"].items():
        known = [f"{k}: {', '.join(f'`{n}`' for n in v)}" for k, v in entry["names"].items() if v]
        lines.append(f"| {name} | {entry['unit']} | {'; '.join(known)} |")
    return "\n".join(lines)


def stages_table() -> str:
    """Return a table of every stage that a variant can implement, with its arguments."""
    lines = ["| stage | what the right one returns, or does |", "| --- | --- |"]
    for name, function in vars(Stages()).items():
        names = ", ".join(inspect.signature(function).parameters)
        does = str(function.__doc__).splitlines()[0].replace("|", r"\|")
        lines.append(f"| `{name}({names})` | {does} |")
    return "\n".join(lines)


def segments_table() -> str:
    """Return a table of a step's segments: what each is held to, by which names, and what it speaks for."""
    lines = [
        "| segment | what must hold | names that are tried | speaks for |",
        "| --- | --- | --- | --- |",
    ]
    for segment in SEGMENTS:
        own = segment.instances.__doc__ or inspect.getmodule(segment.instances).__doc__ or ""
        does = (
            own.splitlines()[0].removeprefix("Yield ").removeprefix(f"{segment.name}: ").rstrip(".")
        )
        causes = ", ".join(f"`{slug}`" for slug in causes_of(segment.name)) or "what it says"
        lines.append(f"| {segment.name} | {does} | {len(variants_of(segment.name))} | {causes} |")
    return "\n".join(lines)


def consequences_table() -> str:
    """Return a table of what is measured of how steps are set, with bounds and what it speaks for."""
    file = ROOT / "src" / "rlvr_debug" / "replay" / "consequences" / "texts.yaml"
    lines = ["| consequence | bound | why this bound | speaks for |", "| --- | --- | --- | --- |"]
    for name, text in read_yaml(file).items():
        causes = [slug for slug in hypothesis_names() if name in consequences_for(slug)]
        says = ", ".join(f"`{slug}`" for slug in causes) or "what it says"
        lines.append(f"| {name} | {text['bound']} | {text['reason']} | {says} |")
    return "\n".join(lines)


# by page: the marks, and what stands between the two ends of each
PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "hypotheses.md": {"hypotheses": hypotheses_text},
    "diagnose.md": {"checks": checks_table, "names": names_table},
    "releases.md": {"releases": releases_text, "checked": checks_text},
    "trainer.md": {"stages": stages_table},
    "check.md": {"segments": segments_table, "consequences": consequences_table},
    "record.md": {"settings": settings_text},
    "parameters.md": {"parameters": parameters_text},
}
SCHEMA = ROOT / "docs" / "params.schema.json"


def written(page: Path) -> str:
    """Return the page as it should be. Raise InputError where a mark is missing."""
    text = page.read_text(encoding="utf-8")
    for mark, part in PAGES[page.name].items():
        begin, end = f"<!-- {mark}: begin -->\n", f"\n<!-- {mark}: end -->"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            raise InputError(
                f"{page}: found no marks of {mark}, expected {begin.strip()} and its end"
            )
        text = before + begin + part() + end + after
    return text


if __name__ == "__main__":
    run_main(main)
