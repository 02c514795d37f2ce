"""What no hypothesis of a study is about: a stage or a setting of its case, judged as a cause that has no folder.

Such a cause claims no mechanism: its arms locate it, and nothing explains it.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

from rlvr_debug.causes.base import Hypothesis, hypothesis_of
from rlvr_debug.files import read_yaml

UNNAMED = "unnamed-"
# the fields of a case, an arm, an intervention and a run that hold settings
BLOCKS = ("rollouts", "options", "training")


def unnamed_slug(stage_or_setting: str, block: str = "") -> str:
    """Return the slug of what no hypothesis names. block: of a setting, where it stands; of a stage, none."""
    words = [*filter(None, [block]), *stage_or_setting.lower().split("_")]
    return UNNAMED + "".join(c if c.isalnum() and c.isascii() else "-" for c in "-".join(words))


def is_unnamed(slug: str) -> bool:
    return slug.startswith(UNNAMED)


@cache
def unnamed_hypothesis(slug: str) -> Hypothesis:
    """Return the cause of that slug: what is said of a hypothesis, in terms of its part alone."""
    block, _, setting = slug.removeprefix(UNNAMED).partition("-")
    words = [block, setting] if block in BLOCKS else [slug.removeprefix(UNNAMED)]
    part = ".".join(words).replace("-", "_")
    path = Path(__file__).with_suffix(".yaml")
    texts = {
        k: v.format(part=part) if isinstance(v, str) else v for k, v in read_yaml(path).items()
    }
    return replace(hypothesis_of(slug, texts, path), part=part)
