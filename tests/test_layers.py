"""The packages point down: each imports from itself and from what is below, nothing from above."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlvr_debug.checkout import ROOT

PACKAGE = ROOT / "src" / "rlvr_debug"

# lowest first; what stands in one line may import each other
LAYERS = (
    (
        "errors",
        "blocks",
        "files",
        "git",
        "processes",
        "devices",
        "venvs",
        "checkout",
        "launch",
        "schemas",
        "jobs",
    ),
    ("models",),
    ("environments", "data"),
    ("sampling",),
    ("grpo",),
    ("serving",),
    ("metrics",),
    ("logs",),
    ("causes",),
    ("replay",),
    ("verdicts",),
    ("evaluation", "audit", "by_verifiers"),
    ("trainers",),
    ("study",),
    ("diagnosis",),
    ("report",),
    ("cli", "tasksets"),
)


_MOST = 7


def test_no_function_outside_of_the_command_line_takes_more_than_seven_parameters() -> None:
    """What would need more is a data class."""
    found = []
    for folder in ("src", "lab", "benchmarks", "scripts"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    own = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                    count = len([arg for arg in own if arg.arg not in ("self", "cls")])
                    if count > _MOST and "cli" not in file.parts:
                        found.append(f"{file.relative_to(ROOT)}: {node.name} takes {count}")
    assert found == []


def level(package: str) -> int:
    """Return the layer's number, 0 for the lowest."""
    for number, names in enumerate(LAYERS):
        if package in names:
            return number
    raise AssertionError(f"src/rlvr_debug/{package} has no place in LAYERS: give it one")


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield our packages that are imported anywhere, but for types alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = []
            yield from imported(node)
        for name in names:
            first, *rest = name.split(".")
            if first == "rlvr_debug" and rest:
                yield rest[0]


def upward(folder: Path) -> set[tuple[str, str]]:
    """Return the modules that import from above, each with the package that it should not know."""
    found = set()
    for path in sorted(folder.rglob("*.py")):
        module = path.relative_to(folder).with_suffix("")
        if module.parts == ("__init__",):
            continue
        own = level(module.parts[0])
        tree = ast.parse(path.read_text("utf-8"))
        found |= {
            (module.as_posix(), package) for package in imported(tree) if level(package) > own
        }
    return found


def test_no_package_imports_from_one_above_it() -> None:
    assert upward(PACKAGE) == set()


def test_an_import_from_above_is_seen_wherever_it_stands_and_types_are_not_counted(
    tmp_path: Path,
) -> None:
    lines = (
        "from typing import TYPE_CHECKING",
        "if TYPE_CHECKING:",
        "    from rlvr_debug.cli import main",
        "def late():",
        "    try:",
        "        from rlvr_debug import metrics",
        "    finally:",
        "        import rlvr_debug.study.arms, rlvr_debug.errors",
        "from rlvr_debug.sampling.chat import Chat",
    )
    (tmp_path / "grpo").mkdir()
    (tmp_path / "grpo" / "x.py").write_text("\n".join(lines), "utf-8")
    assert upward(tmp_path) == {("grpo/x", "metrics"), ("grpo/x", "study")}


@pytest.mark.parametrize(
    "code",
    [
        "import pathlib, rlvr_debug.study.arms as a, rlvr_debug.study.params as p;"
        "list(a.runs(p.load_params(pathlib.Path('params.yaml'))))",
        "from rlvr_debug.causes import *; [cause_of(f) for f in variant_names()]",
        "from rlvr_debug.environments import *; print([task_of(e) for e in environment_names()])",
        # of the process that waits for a script's check
        "import rlvr_debug.cli.checking, rlvr_debug.replay.baseline, rlvr_debug.trainers.trl.checking",
    ],
    ids=["params", "variants", "environments", "check"],
)
def test_what_computes_nothing_loads_no_torch(code: str) -> None:
    """Its import takes as long as a check."""
    words = [sys.executable, "-c", f"{code}; import sys; sys.exit('torch' in sys.modules)"]
    assert subprocess.run(words, cwd=ROOT, check=False).returncode == 0
