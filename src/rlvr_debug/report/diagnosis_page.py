"""What diagnosis found in one log, or what tells two apart -> one HTML page, with curves, marked places and rollouts.

It needs nothing beside itself, and has no script. All that a log or a model says is text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from rlvr_debug.causes import load_hypothesis
from rlvr_debug.diagnosis.advice import to_log
from rlvr_debug.diagnosis.checks import Finding
from rlvr_debug.diagnosis.compare import Comparison, Parting
from rlvr_debug.diagnosis.evidence import Mark, Said, curve, evidence
from rlvr_debug.diagnosis.rank import Diagnosis
from rlvr_debug.diagnosis.report import chance, in_order, log_text, reward_text, verdict_text
from rlvr_debug.files import write_text
from rlvr_debug.logs.log import Log
from rlvr_debug.report.curves import HEIGHT, WIDTH, Drawn, drawn
from rlvr_debug.report.offline import policy, source, templates

_LONGEST = 1500  # characters of a turn that are shown
_MOST_PARTINGS = 12


@dataclass(frozen=True)
class Shown:
    """A finding with its charts and rollouts."""

    finding: Finding
    charts: tuple[Drawn, ...]
    rollouts: tuple[Said, ...]


def write_diagnosis(found: Diagnosis, path: Path) -> None:
    """Write the page of a diagnosis."""
    write_text(path, diagnosis_html(found))


def write_comparison(found: Comparison, path: Path) -> None:
    """Write the page of two logs."""
    write_text(path, comparison_html(found))


def diagnosis_html(found: Diagnosis) -> str:
    """Return the page of a diagnosis."""
    reward = [drawn([curve(found.log, "reward", "end")])] if found.log.series("reward").size else []
    return _render(
        "diagnosis.html.j2",
        found=found,
        title=log_text(found.log),
        learns=reward_text(found),
        verdict=verdict_text(found),
        reward=reward,
        suspected=[
            (each, chance(each.probability), [_shown(one, found.log) for one in each.findings])
            for each in found.ranked
        ],
        unseen=[(s, why.why) for s in found.unseen if (why := load_hypothesis(s).unseen)],
        to_log=to_log(found.findings, found.log),
        symptoms=[_shown(each, found.log) for each in found.findings if each.explained_by],
        fine=in_order(found, len(found.findings)),
        unchecked=[each for each in found.findings if each.status == "unchecked"],
    )


def comparison_html(found: Comparison) -> str:
    """Return the page of two logs."""
    return _render(
        "comparison.html.j2",
        found=found,
        logs=[(name, log_text(each.log), reward_text(each)) for name, each in _both(found)],
        alone=[
            (name, [_shown(each, of.log) for each in findings])
            for (name, of), findings in zip(
                _both(found), (found.found_one, found.found_other), strict=True
            )
        ],
        partings=list(_partings(found)),
        later=[each.quantity for each in found.partings[_MOST_PARTINGS:]],
        only=[("A", found.only_one), ("B", found.only_other)],
    )


def _both(found: Comparison) -> tuple[tuple[str, Diagnosis], tuple[str, Diagnosis]]:
    return ("A", found.one), ("B", found.other)


def _partings(found: Comparison) -> Iterator[tuple[Parting, Drawn]]:
    """Yield each quantity that parts the two, with both curves and the rows from there on marked."""
    for each in found.partings[:_MOST_PARTINGS]:
        curves = [curve(log, each.quantity) for log in (found.one.log, found.other.log)]
        last = min(float(one.steps[-1]) for one in curves)
        said = f"apart from step {each.step:g}; last third: A {each.one:.4g}, B {each.other:.4g}"
        yield each, drawn(curves, Mark(each.step, max(each.step, last), float("nan"), said))


def _shown(finding: Finding, log: Log) -> Shown:
    found = evidence(finding, log)
    return Shown(finding, tuple(drawn([each]) for each in found.curves), found.rollouts)


def _cut(text: str) -> str:
    """Return a text that is too long to be read without its middle."""
    half = _LONGEST // 2
    if len(text) <= _LONGEST:
        return text
    return f"{text[:half]} [… {len(text) - _LONGEST} characters …] {text[-half:]}"


def _render(name: str, **values: object) -> str:
    page = templates().get_template(name)
    style = Markup(source("check.css") + source("diagnosis.css"))
    return page.render(**values, policy=policy(), style=style, cut=_cut, width=WIDTH, height=HEIGHT)
