"""The digest of the code that a job runs, and what they inherit from it."""

from __future__ import annotations

import ast
import atexit
import functools
import gc
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

from rlvr_debug.errors import InputError
from rlvr_debug.files import digest_of, user_cache, write_text
from rlvr_debug.processes import PARENT

_SOURCE = Path(__file__).resolve().parents[2]
_ROOT = _SOURCE.parent
_ENDS = (".py", "/__init__.py")

# oneDNN's names of instruction sets, the widest of them last; all others may have AMX, as has what it does not know
_AVX512 = ("AVX512_CORE", "AVX512_CORE_VNNI", "AVX512_CORE_BF16", "AVX512_CORE_FP16")
_WITHOUT_AMX = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", *_AVX512)


def set_up_jobs() -> None:
    """Have jobs run in Snakemake's own environment, on this library, with one thread each, and end with it."""
    _first("PATH", os.path.dirname(sys.executable))
    _first("PYTHONPATH", str(_SOURCE))
    os.environ["OMP_NUM_THREADS"] = "1"
    pin_kernels()
    os.environ[PARENT] = str(os.getpid())
    # Snakemake's objects stay to the end: to look for rubbish among them, as it goes and once more when all is
    # done, is a tenth of a large dry run
    gc.set_threshold(1_000_000, 50, 50)
    atexit.register(gc.freeze)


def pin_kernels(cpus: Path = Path("/proc/cpuinfo")) -> None:
    """Have torch take its kernels for AVX2, which give the same bytes on AMD's AVX-512, and oneDNN leave AMX out (docs/limits.md)."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    has_avx2 = cpus.is_file() and re.search(r"^flags\s*:.*\bavx2\b", cpus.read_text(), re.M)
    if has_avx2 and limit in ("", *_WITHOUT_AMX):
        os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")
    if not limit and os.environ.get("ATEN_CPU_CAPABILITY") in ("avx2", "default"):
        os.environ["ONEDNN_MAX_CPU_ISA"] = _WITHOUT_AMX[-1]


@functools.cache
def code_digest(*entries: Path) -> str:
    """Return 12 digits of the code and data that a job reads which begins with these files; comments and docstrings count in these alone."""
    given = {file for entry in entries for file in _files(entry.resolve())}
    digests = {file: _read(file).digest for file in code_of(*entries)}
    digests |= {file: _parsed(file).whole for file in given if file.suffix == ".py"}
    _save_parsed()
    parts = (f"{os.path.relpath(file, _ROOT)} {digests[file]}" for file in sorted(digests))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def code_of(*entries: Path) -> list[Path]:
    """Return the entries and all files that they import or read, at any depth, but for what is imported by name."""
    waiting = [file for entry in entries for file in _files(entry.resolve())]
    files: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file not in files:
            files.add(file)
            waiting += _read(file).needed
    return sorted(files)


def _files(entry: Path) -> list[Path]:
    files = [file for file in entry.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    if not files and not entry.is_file():
        raise FileNotFoundError(f"{entry}: no such file, nor a folder with files")
    return files or [entry]


@dataclass(frozen=True)
class _Source:
    """A file: the files that it imports or reads, and a digest of it, in Python without comments and docstrings."""

    needed: tuple[Path, ...]
    digest: str


@functools.cache
def _read(file: Path) -> _Source:
    if file.suffix != ".py":
        return _Source((), digest_of([file]))
    inside = file.is_relative_to(_SOURCE)
    module = file.relative_to(_SOURCE).with_suffix("").parts if inside else ()
    places = (_SOURCE,) if inside else (file.parent, _SOURCE, _ROOT)
    package = ".".join(module[:-1])
    parsed = _parsed(file)
    names = {package, *(resolve_name(name, package) for name in parsed.imports)}
    needed = [path for name in sorted(names) for path in _modules(name, places)]
    needed += [path for text in parsed.texts for path in _data(file.parent, text) if inside]
    return _Source(tuple(needed), parsed.running)


# --- what a Python source says, by its bytes


class _Parsed(NamedTuple):
    """imports: names, relative ones with their dots; texts: those that may name a file; digests of all but comments, and of what runs."""

    imports: list[str]
    texts: list[str]
    whole: str
    running: str


def _parsed(file: Path) -> _Parsed:
    """Parse a source, or take what was found in the same bytes before: to parse all takes half of a plan's time."""
    source = file.read_bytes()
    key = hashlib.sha256(source).hexdigest()
    known = _known()
    if key not in known:
        known[key] = _parse(source)
        _unsaved.add(key)
    return known[key]


def _parse(source: bytes) -> _Parsed:
    tree = ast.parse(source)
    whole = _sha(tree)
    imports, texts = set[str](), set[str]()
    for node in _running(tree):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            dot = "." if node.module else ""
            imports |= {start, *(f"{start}{dot}{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "*" for part in node.values)
            texts.add("".join(map(str, parts)))
    return _Parsed(sorted(imports), sorted(filter(_may_name_a_file, texts)), whole, _sha(tree))


def _may_name_a_file(text: str) -> bool:
    return bool(re.fullmatch(r"[\w*-]+(\.[\w*-]+)*", text) and text.strip("*."))


_unsaved: set[str] = set()
_MOST = 5_000  # sources; a checkout has some 300


@functools.cache
def _known() -> dict[str, _Parsed]:
    """What was found by this code, by the digest of a source."""
    try:
        kept = json.loads(_cache().read_bytes())
        return {key: _Parsed(*parsed) for key, parsed in kept.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _save_parsed() -> None:
    """Keep what was parsed for other processes; where nothing can be written, they parse it again."""
    if _unsaved:
        known = _known()
        kept = known if len(known) < _MOST else {key: known[key] for key in _unsaved}
        with suppress(OSError, InputError):
            write_text(_cache(), json.dumps(kept))
        _unsaved.clear()


def _cache() -> Path:
    by = hashlib.sha256(Path(__file__).read_bytes() + sys.version.encode()).hexdigest()[:12]
    return user_cache() / "sources" / f"{by}.json"


def _sha(tree: ast.Module) -> str:
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module, from which docstrings and what types alone need are removed."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
        if isinstance(body := getattr(node, "body", None), list):
            body[:] = [each for each in body if not _is_text(each)]
        waiting += ast.iter_child_nodes(node)
        yield node


def _is_text(line: ast.AST) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


# --- which files it names


@functools.cache
def _modules(name: str, places: tuple[Path, ...]) -> list[Path]:
    """The file of a module, and those of the packages on its way; none for other libraries'."""
    words = name.split(".")
    ways = ["/".join(words[: n + 1]) for n in range(len(words))]
    tried = [Path(place, f"{way}{end}") for way in ways for end in _ENDS for place in places]
    return [path for path in tried if path.is_file()]


@functools.cache
def _data(folder: Path, name: str) -> list[Path]:
    """Files beside a module, or in a folder of them, that it has the name of; `*` stands for what it fills in."""
    found = (entry for entry in folder.glob(name) if entry.name != "__pycache__")
    files = [file for entry in found for file in _files(entry)]
    return [] if any(file.suffix == ".py" for file in files) else files


def _first(variable: str, folder: str) -> None:
    """Search there before anywhere else."""
    others = filter(None, [os.environ.get(variable)])
    os.environ[variable] = os.pathsep.join([folder, *others])
