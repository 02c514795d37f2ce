"""Reading and writing files: atomic, deterministic bytes, errors that name the line."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rlvr_debug.errors import InputError

__all__ = ["read_json", "read_jsonl", "sha256", "write_json", "write_jsonl", "write_text"]


def write_text(path: Path, text: str) -> None:
    """Write all of `text` or nothing: to a temporary name beside `path`, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_json(path: Path) -> Any:
    """Raises InputError for a missing file or one that is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}, expected a JSON file") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: expected JSON, found: {error}") from None


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object). Raises InputError at the first bad line."""
    try:
        handle = path.open("rb")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}, expected a JSONL file") from None
    with handle:
        for number, raw in enumerate(handle, start=1):
            if not raw.strip():
                continue
            try:
                row = json.loads(raw.decode("utf-8"))
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


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
