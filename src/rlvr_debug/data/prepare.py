"""From the `data` settings of an environment to two files of rows and a manifest."""

import random
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_debug.data.hub import hub_rows, with_root
from rlvr_debug.data.rows import Row
from rlvr_debug.environments import settings_of, task_of
from rlvr_debug.errors import InputError, short
from rlvr_debug.files import read_jsonl, sha256, write_json, write_jsonl


@dataclass(frozen=True)
class Splits:
    train: tuple[Row, ...]
    heldout: tuple[Row, ...]


def split(rows: Sequence[Row], heldout: int, seed: int) -> Splits:
    """Hold out whole groups, `heldout` rows or a few less; the order of `rows` does not matter.

    Both splits come shuffled, group by group. Raises InputError if one would be empty.
    """
    by_id = sorted(rows, key=lambda row: row.id)
    members: dict[Hashable, list[Row]] = {}
    for label, row in zip(_labels(by_id), by_id, strict=True):
        members.setdefault(label, []).append(row)
    groups = list(members.values())
    random.Random(f"split {seed}").shuffle(groups)

    kept: list[Row] = []
    held: list[Row] = []
    for group in groups:
        (held if len(held) + len(group) <= heldout else kept).extend(group)
    sizes = sorted(map(len, groups)) or [0]
    found = (
        f"heldout is {heldout}, of {len(rows)} rows in {len(groups)} groups that share a question "
        f"or hop, each of {sizes[0]} to {sizes[-1]} rows"
    )
    if not held:
        raise InputError(f"the held-out split is empty: {found}; raise heldout or add other rows")
    if not kept:
        raise InputError(f"the train split is empty: {found}; lower heldout or add other rows")
    return Splits(tuple(kept), tuple(held))


def separate(train: Sequence[Row], heldout: Sequence[Row]) -> Splits:
    """Drop the rows of `train` that are in a group with held-out rows; the order stays.

    Raises InputError if none is left.
    """
    labels = _labels([*heldout, *train])
    taken = set(labels[: len(heldout)])
    kept = tuple(
        row for label, row in zip(labels[len(heldout) :], train, strict=True) if label not in taken
    )
    if not kept:
        raise InputError(
            f"the train split is empty: each of its {len(train)} rows shares a question or hop, "
            f"directly or through other rows, with the {len(heldout)} held-out rows; change one of the files"
        )
    return Splits(kept, tuple(heldout))


def _labels(rows: Sequence[Row]) -> list[Hashable]:
    """What names each row's group: the connected components of rows and what they share."""
    # whoever runs a study imports this module, for a check that needs no SciPy
    from scipy.cluster.hierarchy import DisjointSet

    together = DisjointSet(range(len(rows)))
    for i, row in enumerate(rows):
        question = ("question", " ".join(row.question.casefold().split()))
        for key in (question, *(("component", each) for each in row.components)):
            together.add(key)
            together.merge(i, key)
    return [together[i] for i in range(len(rows))]


KEYS_OF = {"jsonl": ("path", "heldout_path"), "hub": ("datasets", "heldout_datasets")}


def prepare(environment: str, settings: Mapping[str, Any], out: Path) -> None:
    """Write train.jsonl, heldout.jsonl and then manifest.json to `out`; nothing for bad input."""
    splits, dropped = read_splits(environment, settings)
    manifest = {
        "environment": environment,
        "source": settings["source"],
        "seed": settings["seed"],
        "dropped_from_train": dropped,
    }
    for name, rows in (("train", splits.train), ("heldout", splits.heldout)):
        path = out / f"{name}.jsonl"
        write_jsonl(path, (row.to_json() for row in rows))
        hops = dict(Counter(row.hops for row in rows))
        manifest[name] = {"rows": len(rows), "rows_by_hops": hops, "sha256": sha256(path)}
    write_json(out / "manifest.json", manifest)


def rooted(settings: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Return the settings with the paths of files and folders, which start at `root`, as they are from here."""
    files = {key: str(root / settings[key]) for key in KEYS_OF["jsonl"] if settings.get(key)}
    folders = {key: with_root(settings[key], root) for key in KEYS_OF["hub"] if settings.get(key)}
    return {**settings, **files, **folders}


def read_splits(environment: str, settings: Mapping[str, Any]) -> tuple[Splits, int]:
    """Return the splits, and how many rows of train were dropped to keep them apart.

    Raises InputError for bad settings and rows. All rows are held at once: which of them belong together is
    known only after the last.
    """
    source = _checked_source(environment, settings)
    if source == "synthetic":
        rows = list(task_of(environment).synthetic(settings))
        return split(rows, settings["heldout"], settings["seed"]), 0
    rows, heldout = (rows_of(environment, settings, key) for key in KEYS_OF[source])
    if not heldout:
        return split(rows, settings["heldout"], settings["seed"]), 0
    splits = separate(rows, heldout)
    return splits, len(rows) - len(splits.train)


def _checked_source(environment: str, settings: Mapping[str, Any]) -> str:
    source = settings.get("source")
    if source not in ("synthetic", *KEYS_OF):
        raise InputError(
            f"data.{environment}: source is {short(source)}, expected synthetic, jsonl or hub"
        )
    if source == "synthetic":
        needed = settings_of(environment).Data.required(settings)
    else:
        key, heldout_key = KEYS_OF[source]
        needed = [key] if settings.get(heldout_key) is not None else [key, "heldout"]
    for key in [*needed, "seed"]:
        if settings.get(key) is None:
            raise InputError(f"data.{environment}: source {source} needs '{key}', found none")
    return str(source)


def rows_of(environment: str, settings: Mapping[str, Any], key: str) -> list[Row]:
    """Return the rows that `key` names; none where it is missing."""
    if settings.get(key) is None:
        return []
    if key in KEYS_OF["jsonl"]:
        return read_rows(environment, Path(settings[key]))
    place = f"data.{environment}.{key}"
    located = hub_rows(settings[key], place)
    rows = ((where, number, value) for number, (where, value) in enumerate(located, start=1))
    return _parsed(environment, rows, place)


def read_rows(environment: str, path: Path) -> list[Row]:
    """Read a prepared or official file. Raises InputError, with file and line, for a bad row."""
    located = ((f"{path}:{number}", number, value) for number, value in read_jsonl(path))
    return _parsed(environment, located, str(path))


def _parsed(
    environment: str, located: Iterable[tuple[str, int, dict[str, Any]]], origin: str
) -> list[Row]:
    """Return the rows of (place as errors name it, number from 1, columns)."""
    task = task_of(environment)
    rows: list[Row] = []
    places: dict[str, str] = {}
    for where, number, value in located:
        # the parser checks an id that is there
        identity = {"id": f"{environment}-{number}"} if task.numbered else {}
        row = task.row.parse({**identity, **value}, where)
        if row.id in places:
            raise InputError(
                f"{where}: id {short(row.id)} is already used in {places[row.id]}, expected each id once"
            )
        places[row.id] = where
        rows.append(row)
    if not rows:
        raise InputError(f"{origin}: no rows, expected at least one")
    return rows
