"""docs/extend.md, followed in a copy of the project: a cause, an environment and a chart, each where the page says."""

import json
import re
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import altair as alt
import pytest
import torch
import yaml

from lab.pages import faults_table
from rlvr_debug import causes
from rlvr_debug.causes import check, hypothesis_names
from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.files import read_table, read_yaml
from rlvr_debug.report import charts
from rlvr_debug.study.params import load_params
from tests.copies import again, call
from tests.in_process import called
from tests.made_up_study import CAUSE_FOUND, Study
from tests.pages import BLOCK

CASES = read_yaml(Path(__file__).with_suffix(".yaml"))


def section(title: str) -> str:
    """What the page says below this title."""
    page = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def changed(copied: Path) -> set[str]:
    """What differs from the project: files that are edited, and folders and files of src that are new."""
    status = call("git status --porcelain --untracked-files=normal", copied).stdout
    return {line[3:] for line in status.splitlines() if "src/" in line or "M" in line[:2]}


def add(copied: Path, name: str, place: str) -> None:
    """Add an example as the page says: one folder, and no other file."""
    before = changed(copied)
    done = call(f"cp -r examples/{name} src/rlvr_debug/{place}/", copied)
    assert done.returncode == 0, done.stdout
    assert changed(copied) - before == {f"src/rlvr_debug/{place}/{name}/"}


@pytest.fixture(scope="module")
def extended(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with both examples."""
    copied = again(original, tmp_path_factory.mktemp("extended") / "project")
    add(copied, "skipped_steps", "causes")
    add(copied, "reverse", "environments")
    return copied


@pytest.mark.parametrize(
    ("title", "example"), [("A cause", "skipped_steps"), ("An environment", "reverse")]
)
def test_what_is_added_is_one_folder_with_the_files_that_the_page_lists(
    title: str, example: str
) -> None:
    listed = re.findall(r"^\| `(\w+\.\w+)` \|", section(title), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in (ROOT / "examples" / example).glob("*.*"))


# --- a cause


def test_a_study_of_a_new_cause_takes_its_arms_and_plants_its_variant(extended: Path) -> None:
    [overlay] = [body for _, body in BLOCK.findall(section("A cause")) if "study:" in body]
    (extended / "mine.yaml").write_text(overlay, encoding="utf-8")
    done = call("rlvr-debug plan --cores 2 --overlay mine.yaml", extended)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("Study skipped-steps: case skipped ")
    shown = (
        "from rlvr_debug.study.params import *; from rlvr_debug.study.arms import arms; "
        "from pathlib import Path; p = load_params(Path('params.yaml'), Path('mine.yaml')); "
        "print(*sorted(a.arm for a in arms(p) if a.hypothesis == 'skipped-steps'))"
    )
    # clip-tenfold changes nothing that the case has of its own
    found = call(f'python -c "{shown}"', extended).stdout.split()
    assert found == ["clip-tenfold", "every-step", "every-step-alone"]


def test_the_example_s_repairs_make_the_steps_that_its_variant_leaves_out() -> None:
    told = runpy.run_path(str(ROOT / "examples" / "skipped_steps" / "clipped_steps_skipped.py"))
    usual = load_params(ROOT / "params.yaml").training.max_grad_norm
    skipped = {}
    for norm in (0.5, 5.0, 50.0):
        for bound in (usual, 10 * usual):
            weight = torch.nn.Parameter(torch.zeros(2))
            weight.grad = torch.tensor([0.0, norm])
            torch.nn.utils.clip_grad_norm_([weight], bound)
            told["implementation"](torch.optim.SGD([weight], lr=1.0))
            skipped[norm, bound / usual] = not weight.any()
    # with ten times the bound no step is left out
    assert {key for key, left in skipped.items() if left} == {(5.0, 1.0), (50.0, 1.0)}


def log_of_skipped_steps(path: Path) -> None:
    """A flat run in which no weight moves in two of five steps."""
    rows = (
        {
            "step": step,
            "reward": 0.3 + 0.01 * (step % 3),
            "kl": 0.001 * step,
            "grad_norm": 0.5,
            "learning_rate": 1e-5,
            "weights/moved": 0.0 if step % 5 < 2 else 0.98,
        }
        for step in range(1, 41)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def with_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cause.yaml of that cause, in a copy of all causes which this process takes for the shipped ones."""
    assert "skipped-steps" not in hypothesis_names()
    folder = shutil.copytree(Path(causes.__file__).parent, tmp_path / "causes")
    shutil.copytree(ROOT / "examples" / "skipped_steps", folder / "skipped_steps")
    monkeypatch.setattr(causes, "_HERE", folder)
    monkeypatch.setattr(causes, "__path__", [str(folder)])
    known = {**vars(causes), **vars(check)}.values()
    kept = [found for found in known if hasattr(found, "cache_clear")]
    before = dict(sys.modules)
    for found in kept:
        found.cache_clear()
    yield folder / "skipped_steps" / "cause.yaml"
    for found in kept:
        found.cache_clear()
    for name in set(sys.modules) - set(before):
        if name.startswith(causes.__name__):
            del sys.modules[name]


def test_diagnosis_of_a_log_ranks_a_new_cause_and_its_overlay_has_its_arms(
    with_skipped: Path, tmp_path: Path
) -> None:
    log, overlay = tmp_path / "log.jsonl", tmp_path / "mine.yaml"
    log_of_skipped_steps(log)
    words = f"rlvr-debug diagnose {log} --gpus 0 --limit 1 --overlay-out {overlay}"
    said = called(main, *words.split()).stdout
    found = r"^1\. skipped-steps, \d+ % likely\n +In 40% of the rows no weight moves"
    assert re.search(found, said, re.M)
    assert "Next: rlvr-debug check train.py" in said
    assert read_yaml(overlay)["hypotheses"]["skipped-steps"] == {
        "arms": {
            "every-step": {"swap": ["optimizer_step"]},
            "clip-tenfold": {"training": {"max_grad_norm": 10.0}},
        }
    }


@pytest.mark.parametrize(
    ("old", "new", "said"), CASES["a mistake in a new cause is one line that names file and key"]
)
def test_a_mistake_in_a_new_cause_is_one_line_that_names_file_and_key(
    old: str, new: str, said: str, with_skipped: Path, tmp_path: Path
) -> None:
    text = with_skipped.read_text(encoding="utf-8")
    assert old in text
    with_skipped.write_text(text.replace(old, new), encoding="utf-8")
    log_of_skipped_steps(tmp_path / "log.jsonl")
    done = called(main, "rlvr-debug", "diagnose", str(tmp_path / "log.jsonl"))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "skipped_steps/cause.yaml: " in done.stderr
    assert said in done.stderr


def test_the_table_of_faults_has_a_new_cause_s_variant(with_skipped: Path) -> None:
    row = next(line for line in faults_table().splitlines() if "clipped-steps-skipped" in line)
    assert row.endswith(
        "| No reported bug: an example of a variant, which plants the fault and names it |"
    )


def test_a_new_hypothesis_is_written_with_all_that_one_says(extended: Path) -> None:
    listed = "from rlvr_debug.causes import *; print(load_hypothesis('my-cause').claim)"
    new = "rlvr-debug new-hypothesis my-cause"
    path, then, claim, again = call(
        f'{new}; python -c "{listed}"; {new}', extended
    ).stdout.splitlines()
    assert path == "src/rlvr_debug/causes/my_cause/cause.yaml"
    assert then.endswith("rlvr-debug plan --hypothesis my-cause")
    assert claim == "TODO"
    assert "exists; choose another name" in again


# --- an environment


def overlay_of(copied: Path) -> str:
    """Write the overlay that the page shows, and return its name."""
    [overlay] = [body for _, body in BLOCK.findall(section("An environment")) if "reverse:" in body]
    (copied / "reverse.yaml").write_text(overlay, encoding="utf-8")
    return "reverse.yaml"


@pytest.mark.heavy
def test_a_new_environment_is_prepared_and_audited(copied: Path) -> None:
    add(copied, "reverse", "environments")
    overlay = overlay_of(copied)
    done = call(f"rlvr-debug run --overlay {overlay} -- results/audit/reverse.json", copied)
    assert done.returncode == 0, done.stdout
    audit = copied / "studies" / "reverse" / "results" / "audit" / "reverse.json"
    found = json.loads(audit.read_text(encoding="utf-8"))
    assert found["oracle_beaten"] == []
    assert found["oracle"]["reward"] == {"mean": 1.0, "lowest": 1.0}
    assert found["copy the question"]["reward"]["mean"] == 0


@pytest.mark.heavy
def test_a_new_environment_has_a_study_with_the_defaults_of_its_settings(copied: Path) -> None:
    add(copied, "reverse", "environments")
    done = call(f"rlvr-debug plan --cores 2 --overlay {overlay_of(copied)}", copied)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("Study reverse: ")
    shown = (
        "from rlvr_debug.study.params import *; from pathlib import Path; "
        "p = load_params(Path('params.yaml'), Path('reverse.yaml')); "
        "print(p.data_settings('reverse'), p.settings('reverse'))"
    )
    assert call(f'python -c "{shown}"', copied).stdout == (
        "{'source': 'synthetic', 'rows': 500, 'heldout': 64, 'seed': 0} "
        "{'max_new_tokens': 48, 'weights': {'correct': 1.0}}\n"
    )


@pytest.mark.heavy
def test_a_new_environment_is_a_taskset_of_verifiers_by_the_module_that_the_page_shows(
    copied: Path,
) -> None:
    pytest.importorskip("verifiers.v1", reason="verifiers is not installed")
    add(copied, "reverse", "environments")
    page = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
    [module] = [body for _, body in BLOCK.findall(page) if "TASKSETS[" in body]
    (copied / "rlvr_debug_reverse.py").write_text(module, encoding="utf-8")
    shown = (
        "from verifiers.v1.utils.loaders import load_taskset, taskset_config_type; "
        "config = taskset_config_type('rlvr-debug-reverse')(id='rlvr-debug-reverse'); "
        "[task] = load_taskset(config).take(1); print(task.data.prompt[0].content)"
    )
    done = call(f'python -c "{shown}"', copied)
    assert "Write backwards: ab" in done.stdout


@pytest.mark.parametrize(
    ("overlay", "said"), CASES["what a new environment does not take is refused in one line"]
)
def test_what_a_new_environment_does_not_take_is_refused_in_one_line(
    overlay: dict[str, Any], said: str, extended: Path
) -> None:
    text = yaml.safe_dump({"study": "reverse", **overlay})
    (extended / "reverse.yaml").write_text(text, encoding="utf-8")
    done = call("rlvr-debug plan --cores 2 --overlay reverse.yaml", extended)
    assert done.returncode == 2
    assert said in done.stdout
    assert len(done.stdout.splitlines()) == 1


# --- a chart


def test_a_chart_is_one_function_and_one_entry(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def gains(tables: charts.Tables, minimum_effect: float) -> Any:
        return alt.Chart(tables["arms"]).mark_bar().encode(x="gain:Q", y="arm:N")

    entry = "- {name: gains, title: Gains, label: Gains of the arms, caption: How to read it.}\n"
    shipped = Path(charts.__file__).with_name("charts.yaml").read_text(encoding="utf-8")
    before = [chart.name for chart in charts.study_charts()]
    (tmp_path / "charts.yaml").write_text(shipped + entry, encoding="utf-8")
    monkeypatch.setattr(charts, "__file__", str(tmp_path / "charts.py"))
    monkeypatch.setattr(charts, "gains_chart", gains, raising=False)
    study = Study(tmp_path / "made", CAUSE_FOUND)
    study.tables()
    assert sorted(study.charts()) == sorted([*before, "gains"])
    page = study.report()
    assert 'data-chart="gains"' in page
    assert "How to read it." in page


# --- all of it in one study


@pytest.mark.heavy
def test_a_study_of_a_new_environment_and_a_new_cause_ends_with_a_report_of_both(
    copied: Path,
) -> None:
    add(copied, "reverse", "environments")
    add(copied, "skipped_steps", "causes")
    overlay = {
        "study": "both",
        "case": "skipped",
        "cases": {"skipped": {"faults": ["clipped-steps-skipped"]}},
        "environment": "reverse",
        "seeds": [0],
        "data": {"reverse": {"rows": 60, "heldout": 8}},
        "training": {"steps": 2, "prompts_per_step": 2, "group_size": 2},
        "hypotheses": {
            **dict.fromkeys(
                yaml.safe_load((ROOT / "params.yaml").read_text("utf-8"))["hypotheses"]
            ),
            "skipped-steps": {},
        },
    }
    (copied / "both.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")
    done = call("rlvr-debug run --cores 2 --overlay both.yaml", copied)
    assert done.returncode == 0, done.stdout
    results = copied / "studies" / "both" / "results"
    verdicts = read_table(results / "tables" / "verdicts.csv").set_index("hypothesis")
    assert "optimizer step " in str(verdicts.loc["skipped-steps", "evidence"])
    page = (results / "report.html").read_text(encoding="utf-8")
    assert 'id="skipped-steps"' in page
    assert "The optimizer leaves out steps" in page


def test_the_shipped_causes_are_those_of_the_page_of_hypotheses() -> None:
    page = (ROOT / "docs" / "hypotheses.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^### ([a-z-]+)$", page, re.M)) == set(hypothesis_names())
