"""Environments beside the main one, for programs whose packages it must not hold.

envs/<name>.txt is installed once for all checkouts, into a folder outside of them that is named for the digest of its pins; in
each checkout `.envs/<name>` is a link to it. The library's own sources are not in it, as each checkout has its own: a program
in such an environment is started with the variables of `processes.variables_apart`.
"""

import ast
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import locked, user_cache, write_text
from rlvr_debug.processes import variables_apart

_MAIN = ("train", "test")  # these are the main environment's
_BIN = os.path.dirname(sys.executable)

# what pip may be told of where packages are, as uv's variables, and what those have between several; uv reads nothing of pip's
_UV_CALLS = {
    "index-url": ("UV_DEFAULT_INDEX", ""),
    "extra-index-url": ("UV_EXTRA_INDEX_URL", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "constraint": ("UV_CONSTRAINT", " "),
    "no-index": ("UV_OFFLINE", ""),
    "cert": ("SSL_CERT_FILE", ""),
}


def venv_names(root: Path = ROOT) -> list[str]:
    return sorted(f.stem for f in (root / "envs").glob("*.txt") if f.stem not in _MAIN)


def python_of(name: str, root: Path = ROOT) -> Path:
    """Its interpreter, built or not."""
    return root / ".envs" / name / "bin" / "python"


def built_python(name: str) -> Path:
    """Return its interpreter. Raise InputError where it is not built, or was removed since."""
    python = python_of(name)
    if not python.is_file():
        expected = f"the environment {name} (python scripts/build_env.py {name})"
        raise InputError(f"{python}: no such file, expected {expected}")
    return python


def build_venv(name: str, root: Path = ROOT) -> Path:
    """Install envs/<name>.txt, and return the interpreter."""
    if name not in venv_names(root):
        known = ", ".join(venv_names(root))
        raise InputError(f"envs/{name}.txt: no such file, expected one of {known}")
    requirements = root / "envs" / f"{name}.txt"
    # pins that override what packages ask for are whole; an installer would go by what they ask for
    whole = ("--no-deps",) if requirements.with_suffix(".overrides").is_file() else ()
    pins = (requirements.read_text(encoding="utf-8"), whole, sys.version, sys.base_prefix)
    return _built(root, name, pins, (*whole, "-r", str(requirements)))


def build_over(base: str, name: str, pins: Sequence[str], root: Path = ROOT) -> Path:
    """Install the pins alone where all else is read from the environment `base`, and return the interpreter."""
    build_venv(base, root)
    below = (root / ".envs" / base).resolve()
    asked = ("--no-deps", *pins)
    folder = Path("lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
    return _built(
        root, name, (below.name, asked), asked, {folder / "base.pth": str(below / folder)}
    )


def _built(
    root: Path,
    name: str,
    pins: object,
    asked: Sequence[str],
    files: Mapping[Path, str] = MappingProxyType({}),
) -> Path:
    """Install what is asked, unless any checkout did, link to it, and return the interpreter; `ready` is written last."""
    digest = hashlib.sha256(repr(pins).encode()).hexdigest()[:16]
    place = _place() / f"{name}-{digest}"
    with locked(place.with_name(f"{place.name}.lock")):
        if not (place / "ready").is_file():
            shutil.rmtree(place, ignore_errors=True)
            _install(name, place, asked)
            for file, text in files.items():
                write_text(place / file, f"{text}\n")
            write_text(place / "ready", "")
        _link(root / ".envs" / name, place)
    write_text(root / ".envs" / f"{name}.ready", f"{digest}\n")
    return python_of(name, root)


def _place() -> Path:
    """Where all checkouts of this user find them; it can be removed at any time."""
    return Path(os.environ.get("RLVR_DEBUG_ENVS") or user_cache() / "envs").absolute()


def _link(link: Path, place: Path) -> None:
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)  # as it was built once, within the checkout
    # `replacing` refuses a name that leads to a folder, which this one does once it was built
    link.parent.mkdir(parents=True, exist_ok=True)
    temporary = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(place)
    os.replace(temporary, link)


def _install(name: str, place: Path, asked: Sequence[str]) -> None:
    """Make the environment and install what is asked."""
    _run(name, (sys.executable, "-m", "venv", "--without-pip", str(place)))
    install(name, str(place / "bin" / "python"), asked)


def install(name: str, python: str, asked: Sequence[str], compiled: bool = False) -> None:
    """Install what is asked for an interpreter: by uv where there is one, or else, or where that fails, by pip."""
    if uv := shutil.which("uv", path=f"{_BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"):
        how = ("-q", "--python", python, *(("--compile-bytecode",) if compiled else ()))
        try:
            _run(name, (uv, "pip", "install", *how, *asked), settings_of_pip())
            return
        except InputError as error:
            print(f"{error}; using pip instead of uv", file=sys.stderr)
    # quiet: what pip says of itself would bury what went wrong
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    _run(name, (*pip, "install", "-q", *asked))


def settings_of_pip() -> dict[str, str]:
    """Return the indices and so on that pip is told, by files or variables, as uv's variables; those that are set stay."""
    words = (sys.executable, "-m", "pip", "config", "list")
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # of all indices, as pip does
    # those of variables count for more than those of files
    for line in sorted(said.splitlines(), key=lambda line: line.startswith(":env:")):
        key, _, text = line.partition("=")
        if called := _UV_CALLS.get(key.rpartition(".")[2]):
            variable, between = called
            value: str = ast.literal_eval(text)
            found[variable] = between.join(value.split()) if between else value
    return {name: value for name, value in found.items() if name not in os.environ}


def _run(name: str, command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
    env = {**variables_apart(), **(variables or {})}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()
        said = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        raise InputError(f"envs/{name}.txt: it could not be installed: {said}")
