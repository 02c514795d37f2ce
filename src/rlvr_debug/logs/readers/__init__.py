"""Rows of a log file, whatever wrote it. What prints to a console has a module each in this folder, which is all it needs."""

import gzip
import io
import json
import logging
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any, BinaryIO

from rlvr_debug.errors import InputError, short
from rlvr_debug.files import read_yaml
from rlvr_debug.logs.console import MOST_ROWS
from rlvr_debug.logs.names import is_known
from rlvr_debug.logs.structured import EXPECTED, TABLES, Rows, flat, is_structured, structured_rows

_MOST_BYTES = 256 * 1024 * 1024  # of what is not read line by line
_HEAD = 65536
_NULS = 1e-3  # of the bytes, in what is text
# what is not read, by how its bytes begin and by how its name ends
_REFUSED: dict[str, dict[str, str]] = read_yaml(Path(__file__).parent.with_name("refused.yaml"))
_LINES = ("log", "textPayload", "message", "msg")  # where clusters keep what a run printed
_ENCODED = {b"\xff\xfe\0\0": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


def read_rows(path: Path, run: str = "") -> Rows:
    """Raises InputError, one line, for a file that is not a log. run: which one of a chart of several."""
    _check_file(path)
    if "tfevents" in path.name:
        found = _tensorboard_rows(path)
    elif path.suffix.lower() == ".wandb":
        found = _wandb_rows(path)
    else:
        found = _file_rows(path, run)
    if run and found.run != run:
        raise InputError(
            f"--run {run}: {path} is no file of several runs, expected a CSV export or a console's output; leave --run out"
        )
    if not found.rows:
        raise InputError(f"{path}: found no rows, {EXPECTED}")
    return found


def _file_rows(path: Path, run: str) -> Rows:
    with path.open("rb") as stream:
        begin = stream.read(4)
        stream.seek(0)
        if begin == b"PAR1":
            return _parquet_rows(path, _whole(path, stream))
        if begin[:2] == b"\x1f\x8b":
            plain = _whole(path, gzip.GzipFile(fileobj=stream))
            return _text_rows(path, io.BytesIO(plain), run)
        for mark, encoding in _ENCODED.items():
            if begin.startswith(mark):
                text = _decoded(path, _whole(path, stream), encoding)
                return _text_rows(path, io.BytesIO(text.encode("utf-8", "replace")), run)
        return _text_rows(path, stream, run)


def _text_rows(path: Path, stream: BinaryIO, run: str) -> Rows:
    """Return the rows of a table, or else of the lines of metrics among whatever else was printed."""
    head = stream.read(_HEAD)
    stream.seek(0)
    for begin, what in _REFUSED["bytes"].items():
        if head.startswith(begin.encode("latin-1")):
            raise InputError(f"{path}: found {what}, which cannot be read; {EXPECTED}")
    # a model may print one: a reply of random tokens ended a log of metrics so
    if head.count(b"\0") > _NULS * len(head):
        raise InputError(f"{path}: found binary data, {EXPECTED}")
    lines = head.decode("utf-8-sig", "replace").lstrip().splitlines()
    if not lines:
        raise InputError(f"{path}: found an empty file, {EXPECTED}")
    first = lines[0]
    wrong = None
    suffix = path.suffix.lower()
    if suffix != ".ipynb" and is_structured(path, first):
        try:
            found = structured_rows(path, _decoded(path, _whole(path, stream)), run)
            key = next((each for each in _LINES if found.rows and each in found.rows[0]), "")
            if not key or any(map(is_known, found.rows[0])):
                return found
            stream = io.BytesIO("\n".join(str(row.get(key)) for row in found.rows).encode())
        except InputError as error:
            if suffix in TABLES:
                raise
            wrong = error
            stream.seek(0)
    from rlvr_debug.logs.printed import printed_rows

    if suffix == ".ipynb" or first[0] == "<":
        text = _decoded(path, _whole(path, stream))
        stream = io.BytesIO("\n".join(_page_lines(path, text)).encode())
    return printed_rows(path, stream, wrong, run)


def _whole(path: Path, stream: BinaryIO | gzip.GzipFile) -> bytes:
    """Return all that a stream has. Raise InputError where that is too much, or broken."""
    try:
        data = stream.read(_MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: expected a whole gzip file, found: {error}") from None
    if len(data) > _MOST_BYTES:
        raise InputError(f"{path}: expected at most {_MOST_BYTES / 1e6:.0f} MB, found more")
    return data


def _decoded(path: Path, data: bytes, encoding: str = "utf-8-sig") -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        name = encoding.upper().removesuffix("-SIG")
        raise InputError(f"{path}:{line}: expected {name}, found {error.reason}") from None


def _check_file(path: Path) -> None:
    """Raise InputError for what is no file, cannot be read, or is not read by its name."""
    for kind, why in (("names", "not read"), ("programs", "not a log")):
        if what := _REFUSED[kind].get(path.suffix.lower()):
            raise InputError(f"{path}: found {what}, which is {why}; {EXPECTED}")
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path}: found no regular file, {EXPECTED}")
        with path.open("rb"):
            pass
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}, {EXPECTED}") from None
    except ValueError as error:  # a path that holds NUL or half a character
        raise InputError(f"{short(str(path))}: {error}, {EXPECTED}") from None


# --- what a notebook or a page shows: printed text, and a table's rows with tabs between their cells


_ROW = re.compile(r"<tr\b[^>]*>(.*?)</tr>", re.DOTALL | re.IGNORECASE)
_CELL = re.compile(r"<t[dh]\b[^>]*>", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z!][^>]*>")


def _page_lines(path: Path, text: str) -> Iterator[str]:
    """Yield the lines of a page, or what a notebook printed. Raise InputError for a notebook that is none."""
    if path.suffix.lower() != ".ipynb":
        yield from _html_lines(text)
        return
    try:
        cells = json.loads(text)["cells"]
        if not any(cell.get("outputs") for cell in cells):
            raise InputError(
                f"{path}: its outputs are cleared, expected a notebook saved with them"
            )
        for cell in cells:
            for output in cell.get("outputs", ()):
                yield from _output_lines(output)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: expected a notebook, found: {type(error).__name__}") from None


def _output_lines(output: Mapping[str, Any]) -> Iterator[str]:
    shown = output.get("data", {})
    html = "".join(shown.get("text/html", ()))
    if "<table" in html:
        yield from _html_lines(html)
    else:
        yield from "".join(output.get("text") or shown.get("text/plain", ())).splitlines()


def _html_lines(text: str) -> list[str]:
    """Return the text without its tags, the cells of a row of a table parted by tabs."""
    return unescape(_TAG.sub("", _ROW.sub(_row_line, text))).splitlines()


def _row_line(row: re.Match[str]) -> str:
    return "\n" + "\t".join(" ".join(cell.split()) for cell in _CELL.split(row[1])[1:]) + "\n"


# --- parquet and what loggers write themselves, read with the libraries of their makers, each of them an extra


def _parquet_rows(path: Path, data: bytes) -> Rows:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise _missing(path, "parquet", "pyarrow", "parquet") from None
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        if file.metadata.num_rows > MOST_ROWS:
            raise InputError(f"{path}: expected at most {MOST_ROWS} rows, found more")
        rows = file.read().to_pylist()
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise InputError(f"{path}: expected parquet, found: {short(str(error))}") from None
    return Rows("parquet", [flat(row, path, number) for number, row in enumerate(rows, 1)])


def _tensorboard_rows(path: Path) -> Rows:
    """Return a row per step of a file of events: its scalars by tag, and seconds since the first of them."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise _missing(path, "TensorBoard's events", "tensorboard", "tensorboard") from None
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    # 0: every value; of what is no number, next to nothing
    kept = {"scalars": 0, "tensors": 0, "images": 1, "audio": 1, "histograms": 1}
    found = EventAccumulator(str(path), size_guidance=kept, purge_orphaned_data=False)
    try:
        found.Reload()
        tags = found.Tags()
        values = [(tag, e, e.value) for tag in tags["scalars"] for e in found.Scalars(tag)]
        values += [
            (tag, event, array.item())
            for tag in tags["tensors"]
            for event in found.Tensors(tag)
            if (array := make_ndarray(event.tensor_proto)).size == 1 and array.dtype.kind in "fiu"
        ]
    except Exception as error:  # the library has no error of its own for a file that is broken
        raise InputError(
            f"{path}: expected TensorBoard's events, found: {short(str(error))}"
        ) from None
    if not values:
        raise InputError(f"{path}: found no TensorBoard scalars, expected some such as reward")
    values.sort(key=lambda each: each[1].wall_time)
    begun = values[0][1].wall_time
    rows: dict[int, dict[str, Any]] = {}
    for tag, event, value in values:
        row = rows.setdefault(event.step, {"step": event.step})
        row |= {tag: float(value), "_runtime": event.wall_time - begun}
    return Rows("TensorBoard's events", [rows[step] for step in sorted(rows)])


def _wandb_rows(path: Path) -> Rows:
    """Return the history of a run that Weights & Biases kept in a file of its own, a row per call of log."""
    try:
        from wandb.proto import wandb_internal_pb2
        from wandb.sdk.internal.datastore import DataStore
    except ImportError:
        raise _missing(path, "Weights & Biases' own log", "wandb", "wandb") from None
    store = DataStore()
    try:
        store.open_for_scan(str(path))
        logged, whole = _history(store, wandb_internal_pb2.Record)
    except Exception as error:  # assertions and protobuf's errors, of a file that is broken
        found = short(str(error)) if str(error) else "another format, or nothing"
        raise InputError(f"{path}: expected a run of Weights & Biases, found: {found}") from None
    finally:
        store.close()
    rows = [flat(row, path, number) for number, row in enumerate(logged, 1)]
    notes = () if whole else (f"the file is cut off or broken after row {len(rows)}",)
    return Rows("a run of Weights & Biases", rows, notes)


def _history(store: Any, record_of: Any) -> tuple[list[dict[str, Any]], bool]:
    """Return the rows up to the end, or to where the file is cut off or broken, and whether it is whole."""
    rows: list[dict[str, Any]] = []
    while True:
        try:
            data = store.scan_data()
        except AssertionError:
            if not rows:
                raise
            return rows, False
        if data is None:
            return rows, True
        record = record_of()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            rows.append(_row(record.history))


def _row(history: Any) -> dict[str, Any]:
    values = {x.key or "/".join(x.nested_key): json.loads(x.value_json) for x in history.item}
    return {n: v for n, v in values.items() if not (isinstance(v, Mapping) and "_type" in v)}


def _missing(path: Path, what: str, package: str, extra: str) -> InputError:
    return InputError(
        f"{path}: reading {what} needs the package {package}: pip install 'rlvr-debug[{extra}]'"
    )
