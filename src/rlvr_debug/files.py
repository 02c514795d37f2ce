"""Reading and writing files: atomic, deterministic bytes, errors that name the line."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr_debug.errors import InputError, short

if TYPE_CHECKING:
    import pandas as pd
    from _typeshed import DataclassInstance


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name that is renamed to `path` in the end: all is written, or nothing; a link is itself replaced."""
    if not path.is_symlink():
        writable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def writable(path: Path, name: str = "") -> None:
    """Raise InputError if the path is a folder, or a parent is a file. name: of the option that has it; its folder is not made."""
    said = f"{name}: {path}" if name else f"{path}:"
    if path.is_dir():
        raise InputError(f"{said} is a folder, expected a file")
    above = next((each for each in path.parents if each.exists()), None)
    if above is not None and not above.is_dir():
        raise InputError(f"{said} is in {above}, which is a file, expected a folder")
    if name and not path.parent.exists():
        raise InputError(f"{said} is in {path.parent}, which does not exist, expected a folder")


def taken(path: Path) -> InputError:
    """Return the error of a path that something stands at and that is not written over."""
    return InputError(f"{path}: the file exists; choose another name")


def user_cache() -> Path:
    """Return the folder in which all checkouts of this user share what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rlvr-debug")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process in at a time, of those that name this file; it stays there, empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_text(path: Path, text: str) -> None:
    """Write all of `text` or nothing."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def write_csv(path: Path, kind: type[DataclassInstance], rows: Iterable[DataclassInstance]) -> None:
    """Write all of `rows`, which are of one kind, or nothing; its fields are the columns."""
    import csv

    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, [each.name for each in fields(kind)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, rows))


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """Write all of `rows` or nothing, one at a time: none but the one at hand is held as text."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as handle:
        for row in rows:
            handle.write(json.dumps(row, ensure_ascii=False) + "\n")


def written_since(path: Path, seconds: float) -> bool:
    """Say whether the file is there and was written at or after that time, in seconds of the epoch."""
    return path.exists() and path.stat().st_mtime >= seconds


def read_text(path: Path, expected: str, name: str = "") -> str:
    """Raise InputError for a file that cannot be read. expected, name: as the error says, without name its path."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        said = error.strerror or error
        raise InputError(f"{name or path}: {said}, expected {expected}") from None


def read_json(path: Path) -> Any:
    """Raises InputError for a missing file or one that is not JSON."""
    try:
        return json.loads(read_text(path, "a JSON file"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: expected JSON, found: {error}") from None


def read_yaml(path: Path) -> Any:
    """Read a YAML file of the package. Raise InputError for a missing file or one that is not YAML."""
    import yaml

    # ten times as fast as SafeLoader, where PyYAML was built with it
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(path.read_bytes(), loader)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}, expected a YAML file") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path}: expected YAML, found: {' '.join(str(error).split())}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key that stands twice, JSON's reader would keep one value and drop the other."""
    row = dict(pairs)
    if len(row) < len(pairs):
        raise json.JSONDecodeError("a key appears twice", "", 0)
    return row


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object). Raises InputError at the first bad line."""
    try:
        handle = path.open("rb")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}, expected a JSONL file") from None
    except ValueError as error:  # a path that holds NUL or half a character
        raise InputError(f"{short(str(path))}: {error}, expected a JSONL file") from None
    with handle:
        for number, raw in enumerate(handle, start=1):
            if not raw.strip():
                continue
            try:
                row = json.loads(raw.decode("utf-8"), object_pairs_hook=_once)
            except UnicodeDecodeError as error:
                raise InputError(f"{path}:{number}: expected UTF-8, found {error.reason}") from None
            except (ValueError, RecursionError) as error:
                found = getattr(error, "msg", "too deep or a number too long")
                raise InputError(
                    f"{path}:{number}: expected one JSON object, found a line that is not JSON ({found})"
                ) from None
            if not isinstance(row, dict):
                raise InputError(
                    f"{path}:{number}: expected a JSON object, found {type(row).__name__}"
                )
            yield number, row


def read_table(path: Path) -> pd.DataFrame:
    """Read a table of results. Raise InputError for a missing file or one that is not CSV."""
    try:
        return parse_table(read_text(path, "a CSV file"))
    except ValueError as error:
        raise InputError(f"{path}: expected CSV, found: {error}") from None


def parse_table(text: str) -> pd.DataFrame:
    """Return the rows of a CSV: an empty cell is missing, and an arm called "null" is not."""
    import pandas as pd  # which most of those that read and write files do without

    return pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""])


def digest_of(files: Iterable[Path]) -> str:
    """Of their names and contents: 12 digits."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name} {sha256(file)}\n".encode())
    return digest.hexdigest()[:12]


def sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
