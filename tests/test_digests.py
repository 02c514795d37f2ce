"""What Snakemake is told of the code of a job: all that it runs and reads, and nothing else."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlvr_debug.study import digests
from rlvr_debug.study.digests import code_digest, code_of
from tests.shared import ran
from tests.test_workflow import ROOT, Project, copy_finished, finished_mini

# --- closures of a package that is made up

FILES = {
    "scripts/job.py": "import pkg.used\nimport beside\nimport numpy\n",
    "scripts/beside.py": "",
    "src/pkg/__init__.py": "",
    "src/pkg/used.py": """
from typing import TYPE_CHECKING
from pkg.sub import module, name
if TYPE_CHECKING:
    import pkg.types
else:
    import pkg.otherwise
def f(kind):
    try:
        from . import relative
    finally:
        import pkg.deep.late as late
    import_module("pkg.plug_in")
    return open(HERE / "data.yaml"), open(f"{kind}.schema.json"), open("pages"), "__pycache__"
""",
    "src/pkg/sub/__init__.py": "",
    "src/pkg/sub/module.py": "",
    "src/pkg/types.py": "",
    "src/pkg/otherwise.py": "",
    "src/pkg/relative.py": "",
    "src/pkg/deep/late.py": "from pkg.used import f\n",
    "src/pkg/data.yaml": "",
    "src/pkg/one.schema.json": "",
    "src/pkg/pages/page.html": "",
    "src/pkg/other.yaml": "",
    "src/pkg/other.py": "",
    "src/pkg/beside.py": "",
    "src/pkg/plug_in/__init__.py": "import pkg.plug_in.inner\n",
    "src/pkg/plug_in/inner.py": "from pkg.by_plug_in import x\n",
    "src/pkg/by_plug_in.py": "",
    "src/pkg/__pycache__/used.pyc": "",
}
PLUG_IN = {"plug_in/__init__.py", "plug_in/inner.py", "by_plug_in.py"}
NOT_USED = {"types.py", "other.yaml", "other.py", "beside.py", "__pycache__/used.pyc"}


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The digest of the job with these plug-ins, as the files are now."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(digests, "_SOURCE", tmp_path / "src")
    monkeypatch.setattr(digests, "_ROOT", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def digest(*plug_ins: str) -> str:
        forget()
        own = [tmp_path / "src" / "pkg" / each for each in plug_ins]
        return code_digest(tmp_path / "scripts/job.py", *own)

    return digest


def forget() -> None:
    for cached in (digests._read, digests._known, digests._modules, digests._data, code_digest):
        cached.cache_clear()


@pytest.fixture(autouse=True)
def forgotten() -> None:
    forget()


def test_what_was_parsed_is_not_parsed_again_by_another_process(
    made_up: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = made_up("plug_in")
    with monkeypatch.context() as patched:
        patched.setattr(digests, "_parse", None)
        assert made_up("plug_in") == before


@pytest.mark.parametrize("kept", ["", "[]", '{"a": 1}', '{"a": ["b"]}', "no folder"])
def test_digests_need_no_cache(
    made_up: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    before = made_up()
    if kept == "no folder":
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    else:
        digests._cache().write_text(kept)
    assert made_up() == before


@pytest.mark.parametrize("plug_ins", [(), ("plug_in",)], ids=["alone", "with a plug-in"])
def test_a_file_makes_a_job_stale_exactly_if_the_job_may_run_or_read_it(
    made_up: Callable[..., str], tmp_path: Path, plug_ins: tuple[str, ...]
) -> None:
    before, stale = made_up(*plug_ins), set()
    for name, text in FILES.items():
        (tmp_path / name).write_text(f"{text}\nchanged = 1\n")
        if made_up(*plug_ins) != before:
            stale.add(name)
        (tmp_path / name).write_text(text)
    unused = NOT_USED | (set() if plug_ins else PLUG_IN)
    assert stale == FILES.keys() - {f"src/pkg/{name}" for name in unused}


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("# what\ndef f(a):\n    # why\n    return a  # so\n", True),
        ('"""Of the module."""\ndef f(a):\n    """Of the function."""\n\n    return a\n', True),
        ("def f(a): return a\n", True),
        ("def f(a):\n    return -a\n", False),
        ("def f(b):\n    return b\n", False),
        ("def f(a):\n    return a\nf('')\n", False),
        ("def f(a=''):\n    return a\n", False),
    ],
)
def test_a_comment_or_docstring_runs_no_job_and_all_else_does(
    made_up: Callable[..., str], tmp_path: Path, text: str, same: bool
) -> None:
    file = tmp_path / "src/pkg/otherwise.py"
    file.write_text("def f(a):\n    return a\n")
    before = made_up()
    file.write_text(text)
    assert (made_up() == before) == same


def test_docstrings_of_a_plug_in_count_which_a_model_may_be_shown(
    made_up: Callable[..., str], tmp_path: Path
) -> None:
    before = made_up("plug_in")
    for text, same in (("# What.\n", True), ('"""What."""\n', False)):
        (tmp_path / "src/pkg/plug_in/inner.py").write_text(text + FILES["src/pkg/plug_in/inner.py"])
        assert (made_up("plug_in") == before) == same


def test_a_plug_in_that_is_not_there_is_an_error(made_up: Callable[..., str]) -> None:
    with pytest.raises(FileNotFoundError, match=r"pkg/gone: no such file"):
        made_up("gone")


def test_the_package_imports_nothing_relative_to_where_it_is_run() -> None:
    """A name that a module of the package and one of another library share is the library's."""
    trl = ROOT / "src/rlvr_debug/trainers/trl/__init__.py"
    assert trl not in code_of(ROOT / "src/rlvr_debug/trainers/__init__.py")


@pytest.mark.parametrize("script", ["decide", "write_report"])
def test_a_job_that_judges_depends_on_no_code_that_checks(script: str) -> None:
    files = code_of(ROOT / "scripts" / f"{script}.py")
    assert not [file for file in files if "segments" in file.parts or file.name == "judge.py"]


# --- closures of this package: what the rules say, beside what their jobs run

PLANNED = """
import json, os, sys
import rlvr_debug.study.digests as digests

found, plain = [], digests.code_digest
def kept(*entries):
    found.append([str(entries[0]), [str(file) for file in digests.code_of(*entries)]])
    return plain(*entries)
digests.code_digest = kept
try:
    from snakemake.cli import main
    main(sys.argv[1:])
finally:
    print(json.dumps(found), file=open(os.environ["FOUND"], "w"))
"""
STUDY = "--study results/study.json"
JOBS = {
    "prepare_data": f"{STUDY} --environment musique --out OUT",
    "audit_rewards": f"{STUDY} --environment musique --out OUT",
    "check_case": f"{STUDY} --out OUT",
    "train": f"{STUDY} --run musique/case/0 --out OUT",
    "evaluate": f"{STUDY} --environment musique --run musique/case/0 --out OUT",
    "decide": f"tables {STUDY}",
    "draw_charts": f"{STUDY} --out OUT",
    "write_report": f"{STUDY} --out OUT",
}


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return copy_finished(finished_mini(tmp_path_factory), tmp_path_factory.mktemp("digests"))


@pytest.fixture(scope="module")
def planned(mini: Project, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, set[str]]]:
    """Of each digest that the rules ask for: the script, and the package's files that it covers."""
    found = tmp_path_factory.mktemp("planned") / "found.json"
    words = ("--snakefile", "../../workflow/Snakefile", "--config", "overlay=../../mini.yaml")
    subprocess.run(
        [sys.executable, "-c", PLANNED, *words, "--dry-run"],
        cwd=mini.study,
        env={**mini.environment, "FOUND": str(found)},
        capture_output=True,
        check=False,
        timeout=300,
    )
    return [
        (Path(script).stem, {file for file in files if "/src/rlvr_debug/" in file})
        for script, files in json.loads(found.read_text())
    ]


def python(files: set[str]) -> set[str]:
    return {file for file in files if file.endswith(".py")}


@pytest.mark.heavy
@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_stale_by_exactly_the_modules_that_it_runs(
    mini: Project, planned: list[tuple[str, set[str]]], name: str, tmp_path: Path
) -> None:
    watched = tmp_path / "watched"
    words = JOBS[name].replace("OUT", str(tmp_path / "out")).split()
    path = os.pathsep.join([str(mini.root / "src"), str(ROOT / "tests" / "watched")])
    done = ran(
        [sys.executable, str(mini.root / "scripts" / f"{name}.py"), *words],
        cwd=mini.study,
        env={**mini.environment, "PYTHONPATH": path, "WATCHED": str(watched)},
    )
    assert done.returncode == 0, done.stderr
    used = {os.path.realpath(file) for file in watched.read_text().splitlines()}
    covered = [files for script, files in planned if script == name]
    assert python(used) in [python(files) for files in covered]
    # data that stands beside code is covered where the code has its name, whether or not it is read
    assert any(used <= files for files in covered)
