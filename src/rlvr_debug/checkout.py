"""Where the checkout stands whose studies this library runs: params.yaml, workflow, studies, envs."""

from __future__ import annotations

import os
from pathlib import Path

from rlvr_debug.errors import InputError

# an installed wheel has none: then no file is found below it
ROOT = Path(__file__).resolve().parents[2]
_SNAKEFILE = ROOT / "workflow" / "Snakefile"


def has_checkout() -> bool:
    """Return whether this library is a checkout's, and not a wheel's that stands alone."""
    return _SNAKEFILE.is_file()


def checkout() -> Path:
    """Return the checkout's folder, seen from here. Raise InputError where there is none."""
    if not has_checkout():
        raise InputError(
            f"{_SNAKEFILE}: no such file, expected a checkout of rlvr-debug, which this needs: "
            "run it from there (docs/development.md)"
        )
    return Path(os.path.relpath(ROOT))
