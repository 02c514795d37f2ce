"""README.md and docs/: the site builds, links lead somewhere, what is shown is so, and commands do what is said.

Commands are those of tests/docs_commands.yaml; parts that are made from code and results are those of lab/pages.py.
"""

import csv
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.pages import PAGES, written
from rlvr_debug.causes import hypothesis_names
from rlvr_debug.causes.check import log_checks
from rlvr_debug.files import read_yaml
from rlvr_debug.replay.segments import SEGMENTS
from rlvr_debug.replay.variants import variants_of
from rlvr_debug.study.params import load_params, parse_params
from tests.copies import again, call
from tests.made_up_study import CAUSE_FOUND, Study
from tests.pages import BLOCK, DOCS, INLINE, ROOT, commands_of, pages
from tests.shared import ran

COMMANDS = read_yaml(ROOT / "tests" / "docs_commands.yaml")
RUN: Mapping[str, Mapping[str, Any]] = COMMANDS["run"]
NAMED: Mapping[str, list[str]] = COMMANDS["named"]


# --- the site


def site(folder: Path) -> Path:
    """All that the site is made of, in another place."""
    pictures = ("results/charts", "results/releases/verifiers-0.1.3/charts")
    for name in ("README.md", "mkdocs.yml", "docs", *pictures, "lab/readme_as_index.py"):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, target)
    return folder


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    return ran([sys.executable, "-m", "mkdocs", "build"], cwd=folder)


def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = build(site(tmp_path))
    assert done.returncode == 0, done.stderr
    built = tmp_path / "site"
    assert {path.stem for path in built.glob("*.html")} >= {path.stem for path in DOCS.glob("*.md")}
    for page in built.glob("*.html"):
        tags = r"""<(?:(?:script|img|iframe)[^>]*src|link[^>]*href)=["']?(?:https?:)?//"""
        assert not re.search(tags, page.read_text("utf-8")), page
    for style in built.rglob("*.css"):
        outside = r"""(?:url\(|@import)\s*["']?(?:https?:)?//"""
        assert not re.search(outside, style.read_text("utf-8")), style
    assert "docs/report.png" in (built / "index.html").read_text(encoding="utf-8")
    assert '"results/charts/effects.svg"' in (built / "studies.html").read_text(encoding="utf-8")
    assert (built / "results" / "charts" / "effects.svg").is_file()


# a page, a link that leads nowhere, and the target that is warned of
BROKEN = [
    ("docs/verdicts.md", "[gone](gone.md)", "gone.md"),
    ("docs/verdicts.md", "[gone](check.md#gone)", "check.md#gone"),
    ("docs/verdicts.md", "[outside](../results/metrics.json)", "metrics.json"),
    ("docs/studies.md", "![gone](../results/charts/gone.svg)", "charts/gone.svg"),
    ("README.md", "[gone](docs/report.md#gone)", "report.md#gone"),
    ("README.md", "![gone](docs/gone.svg)", "docs/gone.svg"),
    ("docs/lost.md", "# Lost", "not included in the"),
]


def test_links_that_lead_nowhere_and_a_page_without_its_place_fail_the_build(
    tmp_path: Path,
) -> None:
    """Each is a warning, of which one is enough."""
    site(tmp_path)
    for page, link, _ in BROKEN:
        with (tmp_path / page).open("a", encoding="utf-8") as handle:
            handle.write(f"\n{link}\n")
    done = build(tmp_path)
    assert done.returncode != 0
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    for _, link, target in BROKEN:
        assert [line for line in warnings if target in line], (link, done.stderr)
    assert "- lost.md" in done.stderr
    assert f"Aborted with {len(warnings)} warnings in strict mode" in done.stdout


def links(page: str) -> set[str]:
    """Return the files that a page links to, from the project's root, without images."""
    found = re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s#]+)", pages()[page])
    inside = {link for link in found if not link.startswith("https://")}
    return {str((ROOT / page).parent.joinpath(link).relative_to(ROOT)) for link in inside}


def test_the_readme_leads_to_every_page_by_at_most_25_links() -> None:
    first = links("README.md")
    assert len(re.findall(r"(?<!!)\[[^\]]*\]\(", pages()["README.md"])) <= 25
    assert [link for link in first if not (ROOT / link).is_file()] == []
    reached, to_do = {"README.md"}, first & pages().keys()
    while to_do := to_do - reached:
        reached |= to_do
        to_do = {link for page in to_do for link in links(page)} & pages().keys()
    assert pages().keys() - reached == set()


# --- paths

TREES = re.compile(
    "benchmarks|ci|configs|docs|envs|examples|fixes|lab|models|results|scripts|src|studies|tests|workflow"
)
# of what is not this project, or is there only once something was run or added
NOT_OURS = re.compile(
    r"envs/environment\.py|verifiers/(?:trainers|envs|utils)/\w+\.py|metrics/answer\.py|results/(?:runs|data|server|model|report\.html|audit/reverse|tables/verifiers\.csv).*"
    r"|studies/(?:<name>|smoke|mine)/.*|benchmarks/faults/work/"
    r"|src/rlvr_debug/(?:causes/learning_rate/.*|environments/reverse/?|trainers/mine/.*)|rlvr_debug_reverse\.py"
)


def missing_paths(text: str) -> list[str]:
    """Paths of the project in inline code that are not there."""
    found = []
    for code in INLINE.findall(BLOCK.sub("", text)):
        path = code.partition(": ")[0].partition("::")[0]
        if not re.fullmatch(r"[\w.*{},<>/-]+", path) or NOT_OURS.fullmatch(path):
            continue
        top, slash, _ = path.partition("/")
        if slash and TREES.fullmatch(top):
            places = [re.sub(r"<\w+>", "*", each).rstrip("/") for each in braces(path)]
        elif path.endswith(".py"):
            places = [f"src/**/{path}"]
        else:
            continue
        examples = ROOT.glob(f"examples/*/{path}")
        if not all(any(ROOT.glob(place)) for place in places) and not any(examples):
            found.append(path)
    return found


def braces(path: str) -> list[str]:
    """a/{b,c} is a/b and a/c."""
    head, opened, rest = path.partition("{")
    inside, _, tail = rest.partition("}")
    return [f"{head}{each}{tail}" for each in inside.split(",")] if opened else [path]


@pytest.mark.parametrize("name", pages())
def test_every_path_that_a_page_names_is_there(name: str) -> None:
    assert missing_paths(pages()[name]) == []


def test_a_path_that_is_not_there_is_found() -> None:
    gone = ["src/rlvr_debug/gone.py", "docs/gone.md", "studies/gone-*.yaml", "gone/loss.py"]
    assert missing_paths(" ".join(f"`{path}`" for path in ("grpo/loss.py", *gone))) == gone


def test_every_page_that_the_code_names_is_there() -> None:
    command = "git grep -hoE docs/[a-z-]+\\.md -- . :!CHANGELOG.md :!tests/test_docs.py"
    named = ran(command.split(), cwd=ROOT).stdout.split()
    assert {name for name in named if not (ROOT / name).is_file()} == set()


# --- commands


def unknown(name: str, text: str) -> list[str]:
    """A line for each command that is in no table, and for each block of no known language."""
    known = {*RUN, *(command for commands in NAMED.values() for command in commands)}
    begins = tuple(command.removesuffix("*") for command in known if command.endswith("*"))
    languages = {language for language, _ in BLOCK.findall(text)} - {"sh", "yaml", "python", "text"}
    lines = [f"{name}: a block of language {language!r}" for language in languages]
    return lines + [
        f"{name}: no test runs `{command}`, expected it in tests/docs_commands.yaml"
        for command in commands_of(text)
        if command not in known and not command.startswith(begins)
    ]


def test_every_command_is_run_or_named_and_no_other_is() -> None:
    texts = pages()
    assert [line for name, text in texts.items() for line in unknown(name, text)] == []
    shown = {command for text in texts.values() for command in commands_of(text)}
    named = [command for commands in NAMED.values() for command in commands]
    assert [command for command in RUN if command not in shown] == []
    assert [c for c in named if not any(s == c or s.startswith(c.rstrip("*")) for s in shown)] == []
    assert len(named) == len({*named} - {*RUN}), "a command stands twice"


def test_a_command_that_nobody_runs_is_said() -> None:
    text = "```sh\nmake coffee \\\n  MILK=1    # hot\n```\nor `dvc brew`\n```\nmake tea\n```\n"
    assert [line.partition(", expected")[0] for line in unknown("new.md", text)] == [
        "new.md: a block of language ''",
        "new.md: no test runs `make coffee MILK=1`",
        "new.md: no test runs `dvc brew`",
    ]


@pytest.fixture(scope="module")
def lent(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, for commands that leave nothing which others would meet."""
    return again(original, tmp_path_factory.mktemp("lent") / "project")


@pytest.mark.parametrize(
    ("command", "how"),
    [
        pytest.param(command, how, id=command, marks=[pytest.mark.heavy] * ("heavy" in how))
        for command, how in RUN.items()
    ],
)
def test_a_command_does_what_its_page_says(
    command: str, how: Mapping[str, Any], lent: Path, request: pytest.FixtureRequest
) -> None:
    own = {"leaves", "heavy"} & {*how}
    copied: Path = request.getfixturevalue("copied") if own else lent
    done = call(f"{command} {how.get('adds', '')}", copied)
    assert done.returncode == how.get("status", 0), done.stdout
    assert "Traceback" not in done.stdout
    assert how.get("says", "") in done.stdout
    assert (copied / how.get("leaves", "")).exists()


def test_the_diagnosis_that_the_readme_shows_is_what_is_said(original: Path) -> None:
    text = pages()["README.md"]
    done = call("rlvr-debug diagnose train.log", original)
    assert next(body for language, body in BLOCK.findall(text) if language == "text") in done.stdout


def test_the_tests_and_lines_of_ci_that_run_commands_are_there() -> None:
    for why, commands in NAMED.items():
        file, _, test = why.partition("::")
        if file == ".ci/run":
            lines = (ROOT / file).read_text("utf-8").replace(" &\n", "\n").splitlines()
            assert {f"timed {command}" for command in commands} <= {*lines}
        elif test:
            assert f"def {test}(" in (ROOT / file).read_text("utf-8"), why
        else:
            assert " " in why


# --- overlays

# its cause, environment or trainer is added first (test_workflow_looks.py); a folder's cases are no overlay (test_folder_of_faults.py)
NO_OVERLAY = re.compile("skipped-steps:|reverse:|trainer: mine|loss-turned-round:")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(body, id=f"{name} {number}")
        for name, page in pages().items()
        for number, (language, body) in enumerate(BLOCK.findall(page))
        if language == "yaml" and not NO_OVERLAY.search(body)
    ],
)
def test_an_overlay_that_is_shown_is_a_study(text: str, tmp_path: Path) -> None:
    path = tmp_path / "overlay.yaml"
    path.write_text(text, encoding="utf-8")
    assert load_params(ROOT / "params.yaml", path).study == parse_params(text, "page")["study"]


# --- what is written from the code, or held to it


@pytest.mark.parametrize("name", PAGES)
def test_what_pages_have_from_the_code_is_up_to_date(name: str) -> None:
    assert written(name) == pages()[name], "python -m lab.pages"


def test_every_column_of_the_tables_is_explained(tmp_path: Path) -> None:
    tables = Study(tmp_path, CAUSE_FOUND).tables()
    page = pages()["docs/report.md"].partition("## The tables")[2]
    for name in ("verdicts", "arms", "runs", "curves"):
        part = page.partition(f"### {name}.csv")[2].partition("\n### ")[0]
        said = re.findall("`([a-z_]+)`", "".join(re.findall(r"^\| (.*?) \|", part, re.MULTILINE)))
        assert sorted(said) == sorted(map(str, tables[name])), name


def test_the_threads_name_segments_and_checks_that_there_are() -> None:
    known = {
        *(segment.name for segment in SEGMENTS),
        *(variant.name for segment in SEGMENTS for variant in variants_of(segment.name)),
        *(check.name for check in log_checks()),
        *hypothesis_names(),
        *("tool_calls", "Settings"),
    }
    with (DOCS / "threads.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["thread"] for row in rows}) == len(rows) == 40
    for row in rows:
        assert {*re.findall(r"[`*]([^`*]+)[`*]", row["would have found it"])} <= known, row
