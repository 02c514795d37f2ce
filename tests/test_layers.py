"""The packages point down: each imports from itself and from what is below, nothing from above, and no two modules each other."""

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from rlvr_debug.checkout import ROOT
from tests.shared import ran

PACKAGE = ROOT / "src" / "rlvr_debug"

# lowest first; what stands in one line may import each other
LAYERS = """
    errors blocks files git processes devices venvs checkout launch jobs
    models
    environments data
    sampling
    grpo
    serving
    metrics
    logs
    causes
    diagnosis
    replay
    recorders verl
    evaluation audit by_verifiers
    trainers
    verdicts
    study
    report
    cli tasksets __main__
"""
LEVEL = {name: n for n, line in enumerate(LAYERS.splitlines()) for name in line.split()}


def imports_of(tree: ast.AST, types: bool = True) -> Iterator[str]:
    """Yield the names of ours that are imported anywhere. types: also those that are imported for types alone."""
    for node in ast.iter_child_nodes(tree):
        if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = []
            yield from imports_of(node, types)
        yield from (name for name in names if name.startswith("rlvr_debug."))


def graph(folder: Path, types: bool = True) -> dict[str, set[str]]:
    """Return by module of the package in that folder the modules that it imports."""
    files = {}
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        files[".".join(part for part in parts if part != "__init__")] = path
    found = {}
    for module, path in files.items():
        names = [name.removeprefix("rlvr_debug.") for name in imported(path, types)]
        modules = {name if name in files else name.rpartition(".")[0] for name in names}
        found[module] = modules & files.keys() - {module, ""}
    return found


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def imported(path: Path, types: bool = True) -> list[str]:
    return list(imports_of(parsed(path), types))


def reached(module: str, graph: Mapping[str, set[str]]) -> set[str]:
    """Return all modules that are imported where that one is, by way of others, too."""
    found: set[str] = set()
    left = [module]
    while left:
        new = graph[left.pop()] - found
        found |= new
        left += new
    return found


def circles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """Return the sets of modules each of which imports, by way of others, all of them."""
    seen = {module: reached(module, graph) for module in graph}
    return {
        frozenset(other for other in seen[module] if module in seen[other])
        for module in graph
        if module in seen[module]
    }


def upward(folder: Path, types: bool = True) -> set[tuple[str, str]]:
    """Return the modules that import from above, each with the package that it should not know."""
    return {
        (module, package)
        for path in sorted(folder.rglob("*.py"))
        for module in [path.relative_to(folder).with_suffix("").as_posix()]
        if module != "__init__"
        for package in (name.split(".")[1] for name in imported(path, types))
        if LEVEL[package] > LEVEL[module.split("/")[0]]
    }


def test_no_package_imports_from_one_above_it_not_even_types() -> None:
    assert upward(PACKAGE) == set()


def test_no_two_modules_import_each_other() -> None:
    """Whether within functions, for types or at the top of the file; what is loaded by its name is not counted."""
    assert circles(graph(PACKAGE)) == set()


def test_a_log_is_diagnosed_without_the_study_torch_or_the_check_of_a_trainer() -> None:
    code = (
        "import sys\n"
        "from rlvr_debug.cli import app\n"
        f"app(['diagnose', {str(ROOT / 'tests' / 'logs' / 'kl-blow-up')!r}], standalone_mode=False)\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = ran([sys.executable, "-c", code], check=True)
    loaded = done.stderr.split()
    assert "1. gradient-explosion" in done.stdout
    ours = {name.split(".")[1] for name in loaded if name.startswith("rlvr_debug.")}
    assert not ours & {"study", "replay", "verdicts", "trainers", "report", "serving"}
    of_studies = {"psutil", "pydot", "scipy", "snakemake", "statsmodels", "torch", "transformers"}
    assert not of_studies & {name.partition(".")[0] for name in loaded}
    # a cause has a module with its checks of logs, which are what is asked for
    others = {name for name in loaded if name.startswith("rlvr_debug")}
    others -= {name for name in others if name.startswith("rlvr_debug.causes.")}
    assert len([name for name in others if _has_code(name)]) <= 25, others


def _has_code(module: str) -> bool:
    path = PACKAGE.parent / module.replace(".", "/")
    return path.with_suffix(".py").is_file() or bool((path / "__init__.py").stat().st_size)


def test_a_trainer_is_checked_without_the_study_its_servers_or_verdicts() -> None:
    imports = graph(PACKAGE, types=False)
    # a package is imported with what stands in it
    for name, own in imports.items():
        own |= {name.rpartition(".")[0]} & imports.keys()
    of_trl = ("recorders.trl.check_script", "recorders.trl.live")
    for entry in ("replay.baseline", "replay.store", *of_trl, "report.offline"):
        rooms = {module.split(".")[0] for module in reached(entry, imports)}
        assert not rooms & {"study", "serving", "verdicts", "diagnosis", "cli"}, entry


def test_an_import_from_above_and_a_circle_are_seen_wherever_they_stand(tmp_path: Path) -> None:
    text = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from rlvr_debug.cli import main
def late():
    try:
        from rlvr_debug import metrics
    finally:
        import rlvr_debug.study.arms, rlvr_debug.errors
from rlvr_debug.sampling.chat import Chat
"""
    for folder in ("grpo", "metrics"):
        (tmp_path / folder).mkdir()
    (tmp_path / "grpo" / "x.py").write_text(text, "utf-8")
    found = {("grpo/x", "metrics"), ("grpo/x", "study")}
    assert upward(tmp_path, types=False) == found
    assert upward(tmp_path) == found | {("grpo/x", "cli")}
    (tmp_path / "metrics" / "__init__.py").write_text("from rlvr_debug.grpo.x import late\n")
    assert circles(graph(tmp_path)) == {frozenset({"grpo.x", "metrics"})}


# by what it stands for: statements that compute nothing
WITHOUT_TORCH = {
    "params": "import pathlib, rlvr_debug.study.arms as a, rlvr_debug.study.params as p;"
    "list(a.runs(p.load_params(pathlib.Path('params.yaml'))))",
    "variants": "from rlvr_debug.causes import *; [cause_of(f) for f in variant_names()]",
    "environments": "from rlvr_debug.environments import *; print([task_of(e) for e in environment_names()])",
    # of the process that waits for a script's check
    "check": "import rlvr_debug.cli.checking, rlvr_debug.replay.baseline, rlvr_debug.recorders.trl.check_script",
    "trainers": "from rlvr_debug.trainers import *; [load_trainer(name) for name in trainer_names()]",
    # Snakemake fails whoever needs an endpoint that does not stand after some seconds
    "server": "import rlvr_debug.serving.process",
}


def test_what_computes_nothing_loads_no_torch() -> None:
    """Its import takes as long as a check."""
    told = "assert 'torch' not in sys.modules, name"
    code = f"import sys\nfor name, each in {WITHOUT_TORCH}.items():\n exec(each)\n {told}"
    done = ran([sys.executable, "-c", code], cwd=ROOT)
    assert done.returncode == 0, done.stderr
