"""The digest of the code that a job runs, and what they inherit from it."""

from __future__ import annotations

import ast
import atexit
import functools
import gc
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import resolve_name
from pathlib import Path

from rlvr_debug.files import digest_of
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
    digests |= {file: _sha(_tree(file)) for file in given if file.suffix == ".py"}
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
    tree = _tree(file)
    inside = file.is_relative_to(_SOURCE)
    module = file.relative_to(_SOURCE).with_suffix("").parts if inside else ()
    places = (_SOURCE,) if inside else (file.parent, _SOURCE, _ROOT)
    names, texts = {".".join(module[:-1])}, set[str]()
    for node in _running(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = resolve_name("." * node.level + (node.module or ""), ".".join(module[:-1]))
            names |= {start, *(f"{start}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "*" for part in node.values)
            texts.add("".join(map(str, parts)))
    needed = [path for name in sorted(names) for path in _modules(name, places)]
    needed += [path for text in sorted(texts) for path in _data(file.parent, text) if inside]
    return _Source(tuple(needed), _sha(tree))


def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_bytes())


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
    if not re.fullmatch(r"[\w*-]+(\.[\w*-]+)*", name) or not name.strip("*."):
        return []
    found = (entry for entry in folder.glob(name) if entry.name != "__pycache__")
    files = [file for entry in found for file in _files(entry)]
    return [] if any(file.suffix == ".py" for file in files) else files


def _first(variable: str, folder: str) -> None:
    """Search there before anywhere else."""
    others = filter(None, [os.environ.get(variable)])
    os.environ[variable] = os.pathsep.join([folder, *others])
