"""Write those parts of README.md and docs/ that are made from the code and from results, between marks.

Run it as `python -m lab.pages`.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import re
from collections.abc import Callable, Mapping
from typing import get_args, get_type_hints

from lab.figures import FIGURES
from lab.parameters import parameters_text, schema_text, settings_text
from lab.releases.checks import pairs_text
from lab.releases.defects import defects_text
from lab.releases.packages import packages_text, trainers_text
from lab.tables import cell, markdown
from rlvr_debug.blocks import told
from rlvr_debug.causes import (
    Hypothesis,
    cause_of,
    hypothesis_names,
    load_hypothesis,
    load_variant,
    stage_of,
    variant_names,
)
from rlvr_debug.causes.check import log_checks
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml, write_text
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.processes import run_main
from rlvr_debug.replay.segments import SEGMENTS
from rlvr_debug.replay.variants import causes_of, consequences_for
from rlvr_debug.study.params import load_params

_PRIORITIES = get_args(get_type_hints(Hypothesis)["priority"])


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None).parse_args()
    for page in PAGES:
        write_text(ROOT / page, written(page))
        print(page)
    write_text(SCHEMA, schema_text())
    print(SCHEMA.relative_to(ROOT))


def hypotheses_text() -> str:
    """Return what each hypothesis claims, how it is tested and what follows, the most urgent first."""
    all_of_them = sorted(
        map(load_hypothesis, hypothesis_names()),
        key=lambda each: (_PRIORITIES.index(each.priority), each.slug),
    )
    arms = load_params(ROOT / "params.yaml", ROOT / "studies" / "full.yaml").arms
    return "\n\n".join(_described(each, told(arms[each.slug])) for each in all_of_them)


def _described(hypothesis: Hypothesis, arms: Mapping[str, object]) -> str:
    # where somebody's code has it; most causes have no line of the release that the case comes from
    place = hypothesis.root_cause.removeprefix("None known in verifiers 0.1.3. Elsewhere: ")
    lines = (
        f"### {hypothesis.slug}",
        "",
        f"*{hypothesis.number}, {hypothesis.kind}, {hypothesis.priority}.* "
        f"{hypothesis.claim} {hypothesis.explanation}",
        "",
        *([] if place.startswith("None claimed") else [f"- **Where.** {place}"]),
        f"- **Test.** {hypothesis.methods} Arms: {', '.join(f'`{name}`' for name in arms)}.",
        f"- **Validated.** {hypothesis.success}",
        f"- **Cleared.** {hypothesis.invalidation}",
        f"- **Then.** {hypothesis.next_steps}",
    )
    return "\n".join(lines)


def log_checks_text() -> str:
    """Return a list of every check of a log for each cause, in the order of equal findings."""
    lists = []
    for slug, checks in itertools.groupby(log_checks(), key=lambda check: check.slug):
        rows = [f"- {check.name}: {check.threshold}" for check in checks]
        lists.append("\n".join([f"`{slug}`", "", *rows]))
    return "\n\n".join(lists)


def stages_table() -> str:
    """Return a table of every stage that a variant can implement, with its arguments."""
    rows = []
    for name, function in vars(Stages()).items():
        names = ", ".join(inspect.signature(function).parameters)
        does = cell(str(function.__doc__).splitlines()[0].removeprefix("Return "))
        rows.append((f"`{name}({names})`", does))
    return markdown("stage | what the right one returns, or does", rows)


def faults_table() -> str:
    """Return a table of every variant of a stage: what it does wrong, and where such a bug was reported."""
    rows = []
    for name in variant_names():
        what, _, rest = str(load_variant(name).__doc__).strip().partition("\n\n")
        # ours end with the rows of a table of known bugs; somebody else's variant need not
        source = re.split(r"[;.]\s+(?:rows?\s.*?|None)\sof\s+known bugs|\n\n", rest)[0].rstrip(".")
        cells = (f"`{name}`", f"`{stage_of(name)}`", cause_of(name), what, source)
        rows.append(cell(" ".join(each.split())) for each in cells)
    return markdown("fault | stage | cause | what it does | reported", rows)


def segments_table() -> str:
    """Return a table of a step's segments: what must hold for each, and which causes it supports."""
    rows = []
    for segment in SEGMENTS:
        own = segment.instances.__doc__ or inspect.getmodule(segment.instances).__doc__ or ""
        does = (
            own.splitlines()[0].removeprefix("Yield ").removeprefix(f"{segment.name}: ").rstrip(".")
        )
        causes = ", ".join(f"`{slug}`" for slug in causes_of(segment.name)) or "itself"
        rows.append((segment.name, does, causes))
    return markdown("segment | what must hold | supports", rows)


def consequences_table() -> str:
    """Return a table of the consequences of settings, with bounds and the causes that each supports."""
    file = ROOT / "src" / "rlvr_debug" / "replay" / "consequences.yaml"
    rows = []
    for name, text in read_yaml(file).items():
        causes = [slug for slug in hypothesis_names() if name in consequences_for(slug)]
        says = ", ".join(f"`{slug}`" for slug in causes) or "itself"
        rows.append((name, cell(text["bound"]), says))
    return markdown("consequence | bound | supports", rows)


# by page, and by the mark that begins and ends the part
PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "docs/hypotheses.md": {"hypotheses": hypotheses_text},
    "docs/check.md": {"trainers": trainers_text},
    "docs/checks.md": {
        "log-checks": log_checks_text,
        "segments": segments_table,
        "consequences": consequences_table,
    },
    "docs/releases.md": {
        "checked": pairs_text,
        "packages": packages_text,
        "defects": defects_text,
    },
    "docs/trainer.md": {"stages": stages_table, "faults": faults_table},
    "docs/record.md": {"settings": settings_text},
    "docs/parameters.md": {"parameters": parameters_text},
    **FIGURES,
}
SCHEMA = ROOT / "docs" / "params.schema.json"


def written(page: str) -> str:
    """Return the page as it should be. Raise InputError where a mark is missing."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for mark, part in PAGES[page].items():
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
