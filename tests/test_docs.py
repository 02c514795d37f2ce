"""README.md and docs/: the site builds, links lead somewhere, and what is written there is so. Figures: test_docs_figures.py.

Every command is accounted for in tests/docs_commands.py, and those that are cheap are run here, in a copy.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lab.pages import PAGES, written
from rlvr_debug.causes import hypothesis_names
from rlvr_debug.causes.check import log_checks
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.replay.segments import SEGMENTS
from rlvr_debug.replay.variants import variants_of
from rlvr_debug.study.params import load_params, parse_params
from tests.copies import call, dry
from tests.docs_accounts import BLOCK, INLINE, Elsewhere, Here, InCI, NotHere, commands_of
from tests.docs_commands import COMMANDS, TABLES
from tests.made_up_study import CAUSE_FOUND, Study
from tests.pages import DOCS, ROOT, pages

LOG = ROOT / "tests" / "logs" / "zero-rate"


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
    command = [sys.executable, "-m", "mkdocs", "build"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )


def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = build(site(tmp_path))
    assert done.returncode == 0, done.stderr
    built = tmp_path / "site"
    assert {path.stem for path in built.glob("*.html")} >= {path.stem for path in DOCS.glob("*.md")}
    for page in built.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"""<(?:script|img|iframe)[^>]*src=["']?(?:https?:)?//""", text)
        assert not re.findall(r"""<link[^>]*href=["']?(?:https?:)?//""", text)
    for style in built.rglob("*.css"):
        assert not re.findall(
            r"""(?:url\(|@import)\s*["']?(?:https?:)?//""", style.read_text("utf-8")
        )
    assert "docs/report.png" in (built / "index.html").read_text(encoding="utf-8")
    assert '"results/charts/effects.svg"' in (built / "studies.html").read_text(encoding="utf-8")
    assert (built / "results" / "charts" / "effects.svg").is_file()


@pytest.mark.parametrize(
    ("page", "link"),
    [
        ("docs/verdicts.md", "[gone](gone.md)"),
        ("docs/verdicts.md", "[gone](check.md#gone)"),
        ("docs/verdicts.md", "[outside](../results/metrics.json)"),
        ("docs/verdicts.md", "![gone](gone.svg)"),
        ("docs/studies.md", "![gone](../results/charts/gone.svg)"),
        ("README.md", "[gone](docs/gone.md)"),
        ("README.md", "[gone](docs/check.md#gone)"),
        ("README.md", "![gone](docs/gone.svg)"),
    ],
)
def test_a_link_that_leads_nowhere_fails_the_build(page: str, link: str, tmp_path: Path) -> None:
    with (site(tmp_path) / page).open("a", encoding="utf-8") as handle:
        handle.write(f"\n{link}\n")
    done = build(tmp_path)
    assert done.returncode != 0
    assert link.partition("(")[2].rstrip(")").partition("/")[2] in done.stderr


def test_a_page_that_the_table_of_contents_leaves_out_fails_the_build(tmp_path: Path) -> None:
    (site(tmp_path) / "docs" / "lost.md").write_text("# Lost\n", encoding="utf-8")
    assert build(tmp_path).returncode != 0


def test_every_link_of_the_readme_leads_somewhere_on_a_git_host() -> None:
    text = pages()["README.md"]
    links = re.findall(r"\]\(([^)\s#]+)", text)
    assert len(links) > 20
    for link in links:
        assert link.startswith("https://") or (ROOT / link).is_file(), link


def test_every_page_is_reached_from_the_readme() -> None:
    text = pages()["README.md"]
    assert [name for name in pages() if name.startswith("docs/") and f"({name}" not in text] == []


# --- paths

TREES = {
    *(
        "benchmarks",
        "ci",
        "configs",
        "docs",
        "envs",
        "examples",
        "fixes",
        "lab",
        "models",
        "results",
    ),
    *("scripts", "src", "studies", "tests", "workflow"),
}
# of what is not this project, or is there only once something was run or added
NOT_OURS = re.compile(
    r"envs/environment\.py|verifiers/(?:trainers|envs|utils)/\w+\.py|metrics/answer\.py|results/(?:runs|data|server|plots|model|report\.html|compare\.svg|audit/reverse|tables/verifiers\.csv).*"
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
        if slash and top in TREES:
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
    text = "`src/rlvr_debug/gone.py`, `docs/gone.md`, `studies/gone-*.yaml`, `gone/loss.py`, `grpo/loss.py`"
    assert missing_paths(text) == [
        "src/rlvr_debug/gone.py",
        "docs/gone.md",
        "studies/gone-*.yaml",
        "gone/loss.py",
    ]


# --- commands


def unknown(texts: Mapping[str, str]) -> list[str]:
    """A line for each command that no test is known to run, and for each block of no known language."""
    lines = []
    for name, text in texts.items():
        for language, body in BLOCK.findall(text):
            if language not in ("sh", "yaml", "python", "text"):
                lines.append(
                    f"{name}: the block that begins with {body.partition(chr(10))[0]!r} is of language "
                    f"{language!r}, expected sh, yaml, python or text"
                )
        lines += [
            f"{name}: no test runs `{command}`, expected it in tests/docs_commands.py: Here, or where it is run"
            for command in commands_of(text)
            if command not in COMMANDS
        ]
    return lines


def test_every_command_is_accounted_for_and_no_other() -> None:
    texts = pages()
    assert unknown(texts) == []
    written_down = {command for text in texts.values() for command in commands_of(text)}
    assert set(COMMANDS) - written_down == set()
    assert sum(map(len, TABLES)) == len(COMMANDS), "a command has two accounts"


def test_a_command_that_nobody_runs_is_named_with_what_to_do() -> None:
    texts = {
        **pages(),
        "docs/new.md": "```sh\nmake coffee \\\n  MILK=1    # hot\n```\nor `dvc brew`\n",
    }
    ending = "expected it in tests/docs_commands.py: Here, or where it is run"
    assert unknown(texts) == [
        f"docs/new.md: no test runs `make coffee MILK=1`, {ending}",
        f"docs/new.md: no test runs `dvc brew`, {ending}",
    ]
    [line] = unknown({"docs/new.md": "```\nmake coffee\n```\n"})
    assert line.endswith("is of language '', expected sh, yaml, python or text")


def of_kind(kind: type) -> Iterator[Any]:
    for command, how in COMMANDS.items():
        if isinstance(how, kind):
            marks = [pytest.mark.heavy] if isinstance(how, Here) and how.heavy else []
            yield pytest.param(command, how, id=command, marks=marks)


@pytest.mark.parametrize(("command", "how"), list(of_kind(Here)))
def test_a_command_does_what_its_page_says(command: str, how: Here, copied: Path) -> None:
    done = call(f"{command} {how.adds}", copied)
    assert done.returncode == how.status, done.stdout
    assert "Traceback" not in done.stdout
    assert how.says in done.stdout
    assert not how.leaves or (copied / how.leaves).is_file()


def test_the_diagnosis_that_the_readme_shows_is_what_is_said(original: Path) -> None:
    [shown] = [body for language, body in BLOCK.findall(pages()["README.md"]) if language == "text"]
    done = call("rlvr-debug diagnose tests/logs/truncation --gpus 0", original)
    assert shown in done.stdout


def plain(text: str) -> str:
    return re.sub(r"""["',\[\]]""", "", text)


@cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def lost(command: str, how: Elsewhere, runs: str) -> list[str]:
    """What does not hold of a command that another test is said to run. runs: what make makes of it."""
    file, _, test = how.test.partition("::")
    text = plain((ROOT / file).read_text(encoding="utf-8"))
    said = plain(f"{command}\n{runs}")
    return [
        *([] if test in functions_of(file) else [f"{file} has no {test}"]),
        *(f"{file} has no {word!r}" for word in how.words if word not in text),
        *(f"`{command}` has no {word!r}" for word in how.words if word not in said),
    ]


def test_what_other_tests_are_said_to_run_they_do(original: Path) -> None:
    for command, how in COMMANDS.items():
        if isinstance(how, Elsewhere):
            runs = (
                dry(command.removeprefix("make "), original) if command.startswith("make ") else ""
            )
            assert lost(command, how, runs) == []
    wrong = Elsewhere("tests/test_docs.py::test_gone", ("--no-such-flag",))
    assert lost("make tea", wrong, "") == [
        "tests/test_docs.py has no test_gone",
        "`make tea` has no '--no-such-flag'",
    ]


def test_what_ci_is_said_to_run_it_does(original: Path) -> None:
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    lines = re.findall(r"^timed make (.+)$", text, re.MULTILINE)
    runs = [dry(target, original) for target in lines]
    for command, how in COMMANDS.items():
        if isinstance(how, InCI):
            target = command.removeprefix("make ")
            same = command.startswith("make ") and dry(target, original).split() in map(
                str.split, runs
            )
            assert target in lines or same or any(command in each for each in runs), command


def test_what_is_not_run_says_why_and_names_targets_that_exist(original: Path) -> None:
    for command, how in COMMANDS.items():
        if isinstance(how, NotHere):
            assert len(how.why.split()) > 1
            if command.startswith("make "):
                assert dry(command.removeprefix("make "), original)


# --- overlays


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(body, id=f"{name} {number}")
        for name, page in pages().items()
        for number, (language, body) in enumerate(BLOCK.findall(page))
        # its cause, environment or trainer is added first, below and in test_workflow_trainers.py; a folder's cases
        # are no overlay (test_folder_of_faults.py)
        if language == "yaml"
        and not any(
            own in body
            for own in ("skipped-steps:", "reverse:", "trainer: mine", "loss-turned-round:")
        )
    ],
)
def test_an_overlay_that_is_shown_is_a_study(text: str, tmp_path: Path) -> None:
    path = tmp_path / "overlay.yaml"
    path.write_text(text, encoding="utf-8")
    assert load_params(ROOT / "params.yaml", path).study == parse_params(text, "page")["study"]


# --- what is written from the code, or held to it


@pytest.mark.parametrize("name", PAGES)
def test_what_pages_have_from_the_code_is_up_to_date(name: str) -> None:
    assert written(DOCS / name) == pages()[f"docs/{name}"], "python -m lab.pages"


def test_the_page_of_the_trainer_has_every_stage() -> None:
    page = pages()["docs/trainer.md"]
    assert [field.name for field in fields(Stages) if f"`{field.name}`" not in page] == []


def test_every_metric_has_a_unit_and_the_file_that_computes_it() -> None:
    page = pages()["docs/diagnostics.md"].partition("\n## Metrics")[2].partition("\n## ")[0]
    units = "reward|share|advantage|correlation|tokens|replies|calls per rollout|nats per token|ratio|loss"
    units += "|loss per weight|loss per nat|relative|weight|weight per step|batches|optimizer steps"
    sections = re.split(r"^### ", page, flags=re.MULTILINE)[1:]
    assert len(sections) > 5
    for section in sections:
        [source] = re.findall(r"^`(\w+\.py)`", section, re.MULTILINE)
        assert (ROOT / "src" / "rlvr_debug" / "metrics" / source).is_file()
        rows = re.findall(r"^\| `[^`]+` \| (.*?) \|", section, re.MULTILINE)
        assert rows
        assert [unit for unit in rows if not re.fullmatch(units, unit)] == []


def test_every_column_of_the_tables_is_explained(tmp_path: Path) -> None:
    tables = Study(tmp_path, CAUSE_FOUND).tables()
    page = pages()["docs/report.md"].partition("## The tables")[2]
    for name in ("verdicts", "arms", "runs", "curves"):
        part = page.partition(f"### {name}.csv")[2].partition("\n### ")[0]
        said = re.findall("`([a-z_]+)`", "".join(re.findall(r"^\| (.*?) \|", part, re.MULTILINE)))
        assert sorted(said) == sorted(map(str, tables[name])), name


def test_every_page_opens_with_the_question_that_it_answers() -> None:
    for name, text in pages().items():
        if name != "README.md":
            opening = text.partition("\n\n")[2].partition("\n\n")[0]
            assert "?" in opening, (
                f"{name} opens with {opening!r}, expected the question that it answers"
            )


def test_the_threads_are_forty_and_name_segments_and_checks_that_there_are() -> None:
    rows = re.findall(
        r"^\| \[[^\]]+\]\((\S+)\) \|(.*)\|$", pages()["docs/threads.md"], re.MULTILINE
    )
    assert len({link for link, _ in rows}) == len(rows) == 40
    assert all(link.startswith("https://github.com/") for link, _ in rows)
    known = {
        *(segment.name for segment in SEGMENTS),
        *(each.name for each in log_checks()),
        *hypothesis_names(),
        "tool_calls",
    }
    variants = {each.name for segment in SEGMENTS for each in variants_of(segment.name)}
    for link, cells in rows:
        ours = cells.rsplit(" | ", 2)[1]
        assert set(INLINE.findall(ours)) <= known, link
        for name in re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", ours):
            assert name in variants | {"as it is set"}, link
