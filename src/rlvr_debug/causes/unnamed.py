"""What no hypothesis of a study is about: a stage or a setting of its case, judged as a cause that has no folder.

Such a cause claims no mechanism: its arms locate it, and nothing explains it.
"""

from pathlib import Path
from typing import Any

from rlvr_debug.files import read_yaml

UNNAMED = "unnamed-"
# what is said of each such cause
UNNAMED_TEXTS = Path(__file__).with_suffix(".yaml")
# the fields of a case, an arm, an intervention and a run that hold settings
BLOCKS = ("rollouts", "options", "training")


def unnamed_slug(stage_or_setting: str, block: str = "") -> str:
    """Return the slug of what no hypothesis names. block: of a setting, where it stands; of a stage, none."""
    words = [*filter(None, [block]), *stage_or_setting.lower().split("_")]
    return UNNAMED + "".join(c if c.isalnum() and c.isascii() else "-" for c in "-".join(words))


def is_unnamed(slug: str) -> bool:
    return slug.startswith(UNNAMED)


def unnamed_part(slug: str) -> str:
    """Return the stage, or the setting with its block, that the slug stands for."""
    block, _, setting = slug.removeprefix(UNNAMED).partition("-")
    words = [block, setting] if block in BLOCKS else [slug.removeprefix(UNNAMED)]
    return ".".join(words).replace("-", "_")


def unnamed_entries(part: str) -> dict[str, Any]:
    """Return what a cause.yaml would say of that part, in its terms alone."""
    texts = read_yaml(UNNAMED_TEXTS).items()
    return {k: v.format(part=part) if isinstance(v, str) else v for k, v in texts}
