"""From the `data` settings of an environment to two files of rows and a manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr_debug.data.calculator import synthetic_calculator
from rlvr_debug.data.hub import hub_rows
from rlvr_debug.data.rows import Row, parse_calculator, parse_gsm8k, parse_musique
from rlvr_debug.data.splits import Splits, separate, split
from rlvr_debug.data.synthetic import synthetic_gsm8k, synthetic_musique
from rlvr_debug.errors import InputError, short
from rlvr_debug.files import read_jsonl, sha256, write_json, write_jsonl

__all__ = ["check", "prepare", "read_rows", "read_splits", "rooted", "rows_of", "synthetic_rows"]

_PARSERS: dict[str, Callable[[dict[str, Any], str], Row]] = {
    "calculator": parse_calculator,
    "gsm8k": parse_gsm8k,
    "musique": parse_musique,
}
_NEEDED_SYNTHETIC = {
    "calculator": ("rows", "steps"),
    "gsm8k": ("rows", "steps"),
    "musique": ("rows", "hops", "paragraphs", "same_relation"),
}
_KEYS = {"jsonl": ("path", "heldout_path"), "hub": ("datasets", "heldout_datasets")}


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
        manifest[name] = _write(out / f"{name}.jsonl", rows)
    write_json(out / "manifest.json", manifest)


def check(environment: str, settings: Mapping[str, Any]) -> None:
    """Raise InputError where `prepare` would; write nothing."""
    read_splits(environment, settings)


def rooted(settings: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """The settings with their files' paths, which start at `root`, as they are from here."""
    paths = {key: settings[key] for key in ("path", "heldout_path") if settings.get(key)}
    return {**settings, **{key: str(root / path) for key, path in paths.items()}}


def read_splits(environment: str, settings: Mapping[str, Any]) -> tuple[Splits, int]:
    """The splits, and how many rows of train were dropped to keep them apart.

    All rows are held at once: which of them belong together is known only after the last.
    """
    source = _checked_source(environment, settings)
    if source == "synthetic":
        rows = list(synthetic_rows(environment, settings))
        return split(rows, settings["heldout"], settings["seed"]), 0
    rows, heldout = (rows_of(environment, settings, key) for key in _KEYS[source])
    if not heldout:
        return split(rows, settings["heldout"], settings["seed"]), 0
    splits = separate(rows, heldout)
    return splits, len(rows) - len(splits.train)


def _checked_source(environment: str, settings: Mapping[str, Any]) -> str:
    source = settings.get("source")
    if source not in ("synthetic", *_KEYS):
        raise InputError(
            f"data.{environment}: source is {short(source)}, expected synthetic, jsonl or hub"
        )
    if source == "synthetic":
        needed = [*_NEEDED_SYNTHETIC[environment], "heldout"]
    else:
        key, heldout_key = _KEYS[source]
        needed = [key] if settings.get(heldout_key) is not None else [key, "heldout"]
    for key in [*needed, "seed"]:
        if settings.get(key) is None:
            raise InputError(f"data.{environment}: source {source} needs '{key}', found none")
    return str(source)


def rows_of(environment: str, settings: Mapping[str, Any], key: str) -> list[Row]:
    """The rows that `key` names; none where it is missing."""
    if settings.get(key) is None:
        return []
    if key in _KEYS["jsonl"]:
        return read_rows(environment, Path(settings[key]))
    place = f"data.{environment}.{key}"
    located = hub_rows(settings[key], place)
    if environment == "gsm8k":  # each selection numbers its rows from 1, but an id stands once
        located = (
            (where, {"id": f"gsm8k-{number}", **row})
            for number, (where, row) in enumerate(located, start=1)
        )
    return _parsed(environment, located, place)


def synthetic_rows(environment: str, settings: Mapping[str, Any]) -> Iterable[Row]:
    """Rows as the environment's `data` settings ask for them, before any split."""
    count, seed = settings["rows"], settings["seed"]
    if environment == "calculator":
        return synthetic_calculator(count, steps=_shares(settings["steps"]), seed=seed)
    if environment == "gsm8k":
        return synthetic_gsm8k(count, steps=_shares(settings["steps"]), seed=seed)
    return synthetic_musique(
        count,
        hops=_shares(settings["hops"]),
        paragraphs=settings["paragraphs"],
        same_relation=settings["same_relation"],
        seed=seed,
        heldout=settings["heldout"],
    )


def _shares(shares: Mapping[str, float]) -> dict[int, float]:
    return {int(number): share for number, share in shares.items()}


def _write(path: Path, rows: Sequence[Row]) -> dict[str, Any]:
    """Write `rows` and return what the manifest says of them."""
    write_jsonl(path, (row.to_json() for row in rows))
    hops = Counter(row.hops for row in rows)
    return {"rows": len(rows), "rows_by_hops": dict(hops), "sha256": sha256(path)}


def read_rows(environment: str, path: Path) -> list[Row]:
    """Read a prepared or official file. Raises InputError, with file and line, for a bad row."""
    located = ((f"{path}:{number}", value) for number, value in read_jsonl(path))
    return _parsed(environment, located, str(path))


def _parsed(
    environment: str, located: Iterable[tuple[str, dict[str, Any]]], origin: str
) -> list[Row]:
    rows: list[Row] = []
    places: dict[str, str] = {}
    for where, value in located:
        row = _PARSERS[environment](value, where)
        if row.id in places:
            raise InputError(
                f"{where}: id {short(row.id)} is that of {places[row.id]} too, expected each id once"
            )
        places[row.id] = where
        rows.append(row)
    if not rows:
        raise InputError(f"{origin}: no rows, expected at least one")
    return rows
