"""README.md and docs/: the site builds, links lead somewhere, and what is written there is so.

Every command is accounted for in tests/docs_commands.py, and those that are cheap are run here, in a copy.
"""

from __future__ import annotations

import ast
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lab.pages import PAGES, written
from rlvr_debug.causes import hypothesis_names, in_order
from rlvr_debug.causes.check import log_checks
from rlvr_debug.files import parse_table
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.replay.segments import SEGMENTS
from rlvr_debug.replay.variants import variants_of
from rlvr_debug.study.params import load_params, parse_params
from rlvr_debug.verdicts.arms import arm_table
from rlvr_debug.verdicts.rule import Bar
from tests.copies import call, dry
from tests.docs_accounts import BLOCK, INLINE, Elsewhere, Here, InCI, NotHere, commands_of
from tests.docs_commands import COMMANDS, TABLES
from tests.made_up_study import CAUSE_FOUND, Study

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LOG = ROOT / "tests" / "logs" / "zero-rate"


def pages() -> dict[str, str]:
    """Text by path."""
    files = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}


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
    r"envs/environment\.py|verifiers/(?:trainers|envs|utils)/\w+\.py|metrics/answer\.py|results/(?:runs|data|server|plots|model|report\.html|compare\.svg|audit/reverse).*"
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
        # its cause, environment or trainer is added first, below and in test_workflow_trainers.py
        if language == "yaml"
        and not any(own in body for own in ("skipped-steps:", "reverse:", "trainer: mine"))
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


# --- figures


@pytest.fixture(scope="module")
def committed() -> Callable[[str], str]:
    """A result as it is committed: the working tree's may be of another machine's run."""

    def read(path: str) -> str:
        command = ["git", "show", f"HEAD:{path}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip("the checkout is no git repository: what is committed is not known")
        return done.stdout

    return read


def csv(text: str) -> dict[str, dict[str, Any]]:
    table = pd.read_csv(io.StringIO(text))
    rows = table.to_dict("records")
    return {
        str(row[table.columns[0]]): {str(key): value for key, value in row.items()} for row in rows
    }


def test_the_readme_s_figures_are_those_of_the_benchmark_and_of_the_study() -> None:
    text = pages()["README.md"]
    scores = pd.read_csv(ROOT / "benchmarks" / "faults" / "results" / "scores.csv")
    whole = scores.set_index("mode").loc["all"]
    held_out = (ROOT / "benchmarks" / "mistakes" / "results.md").read_text(encoding="utf-8")
    kinds, first, _, blamed = held_out.splitlines()[2].split(" | ")[1:5]
    flagged, placed = (
        re.findall(rf"^\| `--only {part}` \|[^|]*\| (\d+ of \d+)", pages()["docs/check.md"], re.M)[
            0
        ]
        for part in ("settings", "faults")
    )
    low, high = (f"{whole[key]:.0%}" for key in ("top1_low", "top1_high"))
    rows = {
        "rlvr-debug diagnose": (f"in {first} of {kinds} kinds of mistake", blamed),
        "rlvr-debug check": (f"in {placed} planted faults", flagged),
        "make run OVERLAY": (
            f"in {whole['top1']:.0f} of {whole['top1_of']:.0f} planted faults [{low}, {high}]",
            f"{whole['false']:.0f} of {whole['false_of']:.0f}",
        ),
    }
    for command, (right, wrong) in rows.items():
        [row] = re.findall(rf"^\| `{command}.*$", text, re.MULTILINE)
        assert row.endswith(f"{right} | {wrong} |")
    arms = csv(
        (ROOT / "results/releases/verifiers-0.1.3/tables/arms.csv").read_text(encoding="utf-8")
    )
    for arm, form in (("case", "{:.2f} [{:.2f}, {:.2f}]"), ("control", "+{:.2f} [{:.2f}, {:.2f}]")):
        assert (
            form.format(*(float(arms[arm][k]) for k in ("gain", "gain_low", "gain_high"))) in text
        )


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


def test_the_effects_of_the_default_study_are_those_of_the_results(
    committed: Callable[[str], str],
) -> None:
    arms, text = csv(committed("results/tables/arms.csv")), pages()["docs/studies.md"]

    def told(arm: str) -> str:
        found = [float(arms[arm][key]) for key in ("effect", "ci_low", "ci_high")]
        return "{:.2f} [{:.2f}, {:.2f}]".format(*found)

    for arm in ("attention-mask-alone", "generation-prompt-alone", "prompt-tools-alone"):
        assert f"loses {told(arm)} |" in text
    mended = ", ".join(
        f"{float(arms[a]['effect']):.2f}".replace("-0.00", "0.00")
        for a in ("attention-mask", "generation-prompt")
    )
    assert f"gains {mended} |" in text
    assert f"gains {float(arms['control']['effect']):.2f} |" in text
    assert f"GSM8K learns under the same defects ({float(arms['gsm8k']['gain']):+.2f})" in text
    assert f"where MuSiQue does not ({float(arms['case']['gain']):+.2f})" in text
    assert float(arms["random-reward"]["gain"]) <= 0
    statuses = {
        slug: row["status"] for slug, row in csv(committed("results/tables/verdicts.csv")).items()
    }
    for slug in ("hidden-context", "sequence-mismatch"):
        assert statuses[slug] == "validated"
        assert f"`{slug}`: validated" in text
    assert {statuses[slug] for slug in ("kl-penalty", "advantage-scaling")} == {"invalidated"}
    assert statuses["lora-weight-sync"] == "not_applicable"


def test_the_figures_of_verifiers_are_those_of_its_studies() -> None:
    arms = {
        f"{release} {arm}": row
        for release in ("0.1.3", "0.1.6.post0")
        for arm, row in csv(
            (ROOT / f"results/releases/verifiers-{release}/tables/arms.csv").read_text(
                encoding="utf-8"
            )
        ).items()
    }

    def row(page: str, name: str) -> list[str]:
        [cells] = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", pages()[page], re.MULTILINE)
        return [cell.strip().replace("**", "") for cell in cells.split("|")]

    def told(*names: str, form: str) -> list[str]:
        return [
            "; ".join(f"{float(arms[arm][key]):{form}}".replace("-0.00", "0.00") for arm in names)
            for key in ("gain", "gain_greedy")
        ]

    def between(arm: str) -> str:
        low, high = (
            f"{float(arms[arm][key]):.2f}".replace("-0.00", "0.00")
            for key in ("gain_low", "gain_high")
        )
        return f" [{low}, {high}]"

    single = {
        "as it is": "0.1.3 case",
        "all patches": "0.1.3 control",
        "attention mask alone": "0.1.3 attention-mask",
        "generation prompt alone": "0.1.3 generation-prompt",
        "tools alone": "0.1.3 prompt-tools",
        "all but attention mask": "0.1.3 attention-mask-alone",
        "all but generation prompt": "0.1.3 generation-prompt-alone",
        "all but tools": "0.1.3 prompt-tools-alone",
        "all patches, random rewards": "0.1.3 random-reward",
        "as it is, on GSM8K": "0.1.3 gsm8k",
        "0.1.6.post0 as it is": "0.1.6.post0 case",
        "0.1.6.post0, all patches": "0.1.6.post0 control",
        "0.1.6.post0, attention mask alone": "0.1.6.post0 attention-mask",
        "0.1.6.post0, all but attention mask": "0.1.6.post0 attention-mask-alone",
        "0.1.6.post0, all patches, random rewards": "0.1.6.post0 random-reward",
    }
    for name, arm in single.items():
        sampled, greedy = told(arm, form=".2f")
        expected = [str(arms[arm]["seeds"]), sampled + between(arm), greedy]
        assert row("docs/verifiers.md", name) == expected, name
    told_again = {
        "the release as it is": "0.1.3 case",
        "with all patches": "0.1.3 control",
        "the release as it is, on GSM8K": "0.1.3 gsm8k",
    }
    for name, arm in told_again.items():
        sampled, greedy = told(arm, form="+.2f")
        found = [cell.removeprefix("+") for cell in row("docs/studies.md", name)]
        assert found == [(sampled + between(arm)).removeprefix("+"), greedy.removeprefix("+")], name
    fixes = ("attention-mask", "generation-prompt", "prompt-tools")
    which = "attention mask; generation prompt; tools"
    assert row("docs/studies.md", f"with one patch alone: {which}") == told(
        *(f"0.1.3 {fix}" for fix in fixes), form=".2f"
    )
    without = [f"0.1.3 {fix}-alone" for fix in fixes]
    assert row("docs/studies.md", f"with all but one: {which}") == told(*without, form=".2f")


def test_the_figures_of_the_original_s_contradiction_are_those_of_its_study() -> None:
    tables = ROOT / "results" / "kl-explodes" / "tables"
    arms = csv((tables / "arms.csv").read_text(encoding="utf-8"))
    runs = pd.read_csv(tables / "runs.csv").groupby("arm")
    text = pages()["docs/studies.md"]
    rows = {
        "beta 0.04": ("case", "{:.0f}", ""),
        "beta 0": ("kl-beta-0", "", ""),
        "mended, beta 0.04": ("generation-prompt", "{:.2f}", ", {:.1f} in the median"),
    }
    for name, (arm, form, median) in rows.items():
        gain = [float(arms[arm][key]) for key in ("gain", "gain_low", "gain_high")]
        group = runs.get_group(arm)
        kl, norm = group["kl_max"], group["grad_norm_max"]
        of_kl = f"{form} to {form}".format(kl.min(), kl.max()) if form else ""
        cells = [
            "{:.2f} [{:.2f}, {:.2f}]".format(*gain),
            of_kl,
            f"{norm.min():.0f} to {norm.max():.0f}{median.format(norm.median())}",
        ]
        [found] = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", text, re.MULTILINE)
        assert [cell.strip() for cell in found.split("|")] == cells, name
    verdicts = csv((tables / "verdicts.csv").read_text(encoding="utf-8"))
    assert verdicts["kl-penalty"]["status"] == "invalidated"
    assert "its figures come from sequence-mismatch" in verdicts["kl-penalty"]["evidence"]


def test_the_figures_of_the_contradiction_on_the_release_are_those_of_its_study() -> None:
    tables = ROOT / "results" / "releases" / "verifiers-0.1.3-kl" / "tables"
    arms = csv((tables / "arms.csv").read_text(encoding="utf-8"))
    runs = pd.read_csv(tables / "runs.csv").groupby("arm")
    kl, norm = runs["kl_max"].max().to_dict(), runs["grad_norm_max"].max().to_dict()
    verdicts = csv((tables / "verdicts.csv").read_text(encoding="utf-8"))
    gain = {arm: float(arms[arm]["gain"]) for arm in ("case", "kl-beta-0", "generation-prompt")}
    ends = [float(arms["generation-prompt"][key]) for key in ("gain_low", "gain_high")]
    said = (
        f"KL up to {kl['case']:.0f} and gradient norms up to "
        f"{norm['case']:.0f} with beta 0.04, at most "
        f"{norm['kl-beta-0']:.2f} with beta 0, the reward flat either way "
        f"({gain['case']:.2f}, {gain['kl-beta-0']:.2f}), mended {gain['generation-prompt']:.2f} "
        f"[{ends[0]:.2f}, {ends[1]:.2f}]; `kl-penalty` is {verdicts['kl-penalty']['status']} there too, "
        f"and five seeds leave sequence-mismatch {verdicts['sequence-mismatch']['status']} "
        f"(p {float(arms['generation-prompt']['p_holm']):.3f})"
    )
    assert said in " ".join(pages()["docs/studies.md"].split())


def test_the_full_study_s_verdicts_are_those_of_its_results() -> None:
    tables = ROOT / "results" / "full" / "tables"
    arms = csv((tables / "arms.csv").read_text(encoding="utf-8"))
    verdicts = csv((tables / "verdicts.csv").read_text(encoding="utf-8"))
    page = " ".join(pages()["docs/hypotheses.md"].split())
    rows = []
    for slug in in_order(list(verdicts)):
        found = verdicts[slug]
        effect = "{:+.3f} [{:+.3f}, {:+.3f}]".format(
            *(float(found[key]) for key in ("effect", "ci_low", "ci_high"))
        )
        status = f"{found['status'].replace('_', ' ')}, {found['confidence']}"
        rows.append(f"| {slug} | {status} | `{found['arm']}` | {effect} |")
    assert " ".join(rows) in page
    verified = verdicts["lora-weight-sync"]["evidence"].rpartition("sampler is ")[2]
    assert f"the verified sampler is {verified}." in page
    costs = [-float(arms["dr-grpo-beta-0"][key]) for key in ("effect", "ci_high", "ci_low")]
    assert "costs it {:.3f} [{:.3f}, {:.3f}]".format(*costs) in page
    gain = [float(arms["with-calculator"][key]) for key in ("gain", "gain_low", "gain_high")]
    healthy = float(arms["calculator-control"]["gain"])
    assert (
        "({:.3f} [{:.3f}, {:.3f}], where the healthy control gains {:.3f})".format(*gain, healthy)
        in page
    )


def test_the_example_of_a_verdict_is_what_the_rule_says_of_the_results(
    committed: Callable[[str], str],
) -> None:
    runs = parse_table(committed("results/tables/runs.csv")).fillna(
        {"changes": "", "hypothesis": ""}
    )
    arms = arm_table(runs, "musique", Bar.of(0.05, 0.1)).set_index("arm")
    page = pages()["docs/verdicts.md"].partition("**An example**")[2].partition("\n\n")[0]
    page = " ".join(page.split())
    alone, control = arms.loc["attention-mask-alone"], arms.loc["control"]
    for row in (alone, control):
        assert f"{row['gain']:.4f} (s {row['gain_sd']:.4f}, moderated " in page
    assert f"d = {alone['effect']:.4f}" in page
    assert f"{alone['ci_low']:.3f} to {alone['ci_high']:.3f}" in page
    assert f"p = {alone['p']:.7f}" in page
    assert f"p' = 6 x {alone['p']:.7f} = {alone['p_holm']:.6f}" in page
    assert f"Greedy, d is {alone['effect_greedy']:.3f}" in page
    fails = "{:.3f} [{:.3f}, {:.3f}]".format(*control[["effect", "ci_low", "ci_high"]])
    assert f"the control gains {fails} more" in page
