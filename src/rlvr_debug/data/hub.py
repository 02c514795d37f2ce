"""Rows of datasets on the Hugging Face hub, or in its cache, through the `datasets` library.

`path,config,split` selects rows, as in `bdsaglam/musique-mini,answerable,train[:100]`; several
selections are joined by `;`.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_debug.errors import InputError, reason, short

_PATH = re.compile(r"\.{0,2}/.+|\w[\w.-]*(/\w[\w.-]*)?")
_FOLDER = re.compile(r"(?:^|(?<=;))\s*(\.\.?/[^,;]+)")
_PART = r"\w+(\.\w+)*(\[(-?\d+%?)?:(-?\d+%?)?\])?"
_SPLIT = re.compile(rf"{_PART}(\+{_PART})*")
_PATIENCE = 5  # seconds; the library alone would try for minutes


@dataclass(frozen=True)
class Selection:
    """`config` is "" for the only, or default, one."""

    path: str
    config: str
    split: str

    def __str__(self) -> str:
        return f"{self.path},{self.config},{self.split}"


def parse_selections(text: str, key: str) -> tuple[Selection, ...]:
    """Raises InputError, which begins with `key`, for anything but `path,config,split;...`."""
    if ";" in text:
        return tuple(found for each in text.split(";") for found in parse_selections(each, key))
    parts = [part.strip() for part in text.split(",")]
    if len(parts) not in (2, 3):
        raise InputError(
            f"{key}: found {short(text)}, expected path,config,split, or path,split for the "
            "default config; separate several by ';'"
        )
    path, *config, split = parts
    if not _PATH.fullmatch(path):
        raise InputError(
            f"{key}: {short(text)} has the path {short(path)}, expected owner/name on the hub, "
            "or a folder that begins with / or, in the project's folder, with ./"
        )
    if not _SPLIT.fullmatch(split):
        raise InputError(
            f"{key}: {short(text)} has the split {short(split)}, expected a name and, if not all "
            "of it, a slice: train, train[:100] or train[10%:20%]"
        )
    return (Selection(path, "".join(config), split),)


def folders(text: str) -> list[str]:
    """Return the paths of folders in selections, but for those from /."""
    return _FOLDER.findall(text)


def with_root(text: str, root: Path) -> str:
    """Return selections whose folders, which start at `root`, are named as they are from here."""
    return _FOLDER.sub(lambda found: f"{root}/{found[1]}", text)


def hub_rows(text: str, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (`selection:number from 1`, row) of each selection in turn.

    Raises InputError, which begins with `key`, for another syntax, for a dataset, config or split
    that neither the hub nor the cache has, and where `datasets` is not installed.
    """
    selections = parse_selections(text, key)
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            f"{key}: source hub needs the package 'datasets' ({error}): pip install datasets"
        ) from None
    # it draws and logs on stderr, where an error is one line
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    for selection in selections:
        try:
            _reach(selection)
            rows = datasets.load_dataset(
                selection.path, selection.config or None, split=selection.split
            )
            for number, row in enumerate(rows, start=1):
                yield f"{selection}:{number}", row
        except Exception as error:  # the library raises those of whatever it stands on
            raise InputError(
                f"{key}: '{selection}' cannot be loaded ({reason(error)}); check path, config and "
                "split; offline, copy a cache that was filled online and set HF_HUB_OFFLINE=1, "
                "or use source jsonl"
            ) from None


def _reach(selection: Selection) -> None:
    """Raise at once where the hub does not answer; with a folder or offline nobody is asked."""
    import datasets
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    if selection.path.startswith(("/", ".")) or datasets.config.HF_HUB_OFFLINE:
        return
    with suppress(HfHubHTTPError):  # an answer too; what is wrong, load_dataset says better
        HfApi().dataset_info(selection.path, timeout=_PATIENCE)
