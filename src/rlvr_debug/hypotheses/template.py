"""The file of a new hypothesis, with everything that one says."""

from __future__ import annotations

import re
from pathlib import Path

from rlvr_debug.errors import InputError, short
from rlvr_debug.files import write_text

__all__ = ["write_hypothesis"]

_TEMPLATE = '''"""{slug}: TODO, the claim in a few words."""

from rlvr_debug.hypotheses.base import Hypothesis, {mechanism}

HYPOTHESIS = Hypothesis(
    slug="{slug}",
    number="new",
    kind="{kind}",
    priority="medium",
    claim="TODO",
    answer="TODO: one plain sentence to whoever has this cause, such as: Your ...",
    explanation="TODO: why it would explain what is seen.",
    root_cause="TODO: file and line.",
    methods="TODO: what the arms under hypotheses.{slug}.arms in params.yaml change.",
    diagnostics="TODO: what shows the mechanism.",
    success="TODO",
    invalidation="TODO",
    alternatives=(),
    cost="TODO",
    next_steps="TODO",
    {argument},
)
'''
_MECHANISMS = {
    "cause": (
        "probe_finding",
        'mechanism=lambda evidence: probe_finding(evidence, "TODO: a probe\'s name")',
    ),
    "localiser": ("untested", "mechanism=untested"),
}


def write_hypothesis(slug: str, kind: str, folder: Path = Path(__file__).parent) -> Path:
    """Write the file and return its path. Raises InputError for a bad name, or one that is taken.

    kind: cause or localiser.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", slug):
        raise InputError(
            f"slug is {short(slug)}, expected words of a to z and 0 to 9 with hyphens between them"
        )
    path = folder / f"{slug.replace('-', '_')}.py"
    if path.exists():
        raise InputError(f"{path}: stands there already, expected a new name")
    mechanism, argument = _MECHANISMS[kind]
    write_text(path, _TEMPLATE.format(slug=slug, kind=kind, mechanism=mechanism, argument=argument))
    return path
