"""docs/extend.md, followed in a copy of the project: a cause, an environment and a chart, each where the page says."""

import json
import re
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lab.pages import faults_table
from rlvr_debug import causes
from rlvr_debug.causes import check, hypothesis_names
from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.files import read_table, read_yaml
from rlvr_debug.report.charts import study_charts
from rlvr_debug.study.params import load_params
from tests.copies import call
from tests.in_process import called
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


# --- a cause


def skipped(copied: Path) -> Path:
    """Add the cause as the page says: one folder, and no other file."""
    done = call("cp -r examples/skipped_steps src/rlvr_debug/causes/", copied)
    assert done.returncode == 0, done.stdout
    assert changed(copied) == {"src/rlvr_debug/causes/skipped_steps/"}
    return copied


def test_a_study_of_a_new_cause_takes_its_arms_and_plants_its_variant(copied: Path) -> None:
    skipped(copied)
    [overlay] = [body for _, body in BLOCK.findall(section("A cause")) if "study:" in body]
    (copied / "mine.yaml").write_text(overlay, encoding="utf-8")
    done = call("rlvr-debug plan --cores 2 --overlay mine.yaml", copied)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("Study skipped-steps: case skipped ")
    shown = (
        "from rlvr_debug.study.params import *; from rlvr_debug.study.arms import arms; "
        "from pathlib import Path; p = load_params(Path('params.yaml'), Path('mine.yaml')); "
        "print(*sorted(a.arm for a in arms(p) if a.hypothesis == 'skipped-steps'))"
    )
    # clip-tenfold changes nothing that the case has of its own
    assert (
        call(f'python -c "{shown}"', copied).stdout == "clip-tenfold every-step every-step-alone\n"
    )


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


def test_diagnosis_of_a_log_ranks_a_new_cause_and_its_overlay_has_its_arms(copied: Path) -> None:
    log_of_skipped_steps(copied / "log.jsonl")
    command = "rlvr-debug diagnose log.jsonl --gpus 0 --limit 1 --overlay-out mine.yaml"
    before = call(command.replace("mine", "before"), copied).stdout
    assert "skipped-steps" not in before
    skipped(copied)
    said = call(command, copied).stdout
    assert re.search(
        r"^1\. skipped-steps, \d+ % likely\n +In 40% of the rows no weight moves", said, re.M
    )
    assert "Next: rlvr-debug check train.py" in said
    overlay = yaml.safe_load((copied / "mine.yaml").read_text(encoding="utf-8"))
    assert overlay["hypotheses"]["skipped-steps"] == {
        "arms": {
            "every-step": {"swap": ["optimizer_step"]},
            "clip-tenfold": {"training": {"max_grad_norm": 10.0}},
        }
    }


@pytest.fixture
def with_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cause.yaml of that cause, in a copy of all causes which this process takes for the shipped ones."""
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


def test_a_new_hypothesis_is_written_with_all_that_one_says(copied: Path) -> None:
    done = call("rlvr-debug new-hypothesis my-cause", copied)
    path, then = done.stdout.splitlines()
    assert path == "src/rlvr_debug/causes/my_cause/cause.yaml"
    assert then.endswith("rlvr-debug plan --hypothesis my-cause")
    listed = "from rlvr_debug.causes import *; print(load_hypothesis('my-cause').claim)"
    assert call(f'python -c "{listed}"', copied).stdout == "TODO\n"
    again = call("rlvr-debug new-hypothesis my-cause", copied)
    assert again.returncode == 2
    assert "exists; choose another name" in again.stdout


# --- an environment


def reverse(copied: Path) -> Path:
    """Add the environment as the page says: one folder, and no other file."""
    done = call("cp -r examples/reverse src/rlvr_debug/environments/", copied)
    assert done.returncode == 0, done.stdout
    assert changed(copied) == {"src/rlvr_debug/environments/reverse/"}
    return copied


def overlay_of(copied: Path) -> str:
    """Write the overlay that the page shows, and return its name."""
    [overlay] = [body for _, body in BLOCK.findall(section("An environment")) if "reverse:" in body]
    (copied / "reverse.yaml").write_text(overlay, encoding="utf-8")
    return "reverse.yaml"


@pytest.mark.heavy
def test_a_new_environment_is_prepared_and_audited(copied: Path) -> None:
    reverse(copied)
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
    reverse(copied)
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
    reverse(copied)
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
    overlay: dict[str, Any], said: str, copied: Path
) -> None:
    reverse(copied)
    text = yaml.safe_dump({"study": "reverse", **overlay})
    (copied / "reverse.yaml").write_text(text, encoding="utf-8")
    done = call("rlvr-debug plan --cores 2 --overlay reverse.yaml", copied)
    assert done.returncode == 2
    assert said in done.stdout
    assert len(done.stdout.splitlines()) == 1


# --- a chart


def test_a_chart_is_one_function_and_one_entry(copied: Path) -> None:
    folder = copied / "src" / "rlvr_debug" / "report"
    with (folder / "charts.yaml").open("a", encoding="utf-8") as file:
        file.write(
            "- {name: gains, title: Gains, label: Gains of the arms, caption: How to read it.}\n"
        )
    with (folder / "charts.py").open("a", encoding="utf-8") as file:
        file.write(
            "\n\ndef gains_chart(tables: Tables, minimum_effect: float) -> alt.TopLevelMixin:\n"
            '    return alt.Chart(tables["arms"]).mark_bar().encode(x="gain:Q", y="arm:N")\n'
        )
    made = (
        "from pathlib import Path; from rlvr_debug.report.page import report_html; "
        "from tests.made_up_study import *; "
        "s = Study(Path('made'), CAUSE_FOUND); s.tables(); print(*sorted(s.charts())); "
        "Path('page.html').write_text(report_html(s.results, REPORT_SETTINGS))"
    )
    done = call(f'python -c "{made}"', copied)
    drawn = done.stdout.split()
    assert sorted({*(chart.name for chart in study_charts()), "gains"}) == drawn, done.stdout
    page = (copied / "page.html").read_text(encoding="utf-8")
    assert 'data-chart="gains"' in page
    assert "How to read it." in page


# --- all of it in one study


@pytest.mark.heavy
def test_a_study_of_a_new_environment_and_a_new_cause_ends_with_a_report_of_both(
    copied: Path,
) -> None:
    reverse(copied)
    call("cp -r examples/skipped_steps src/rlvr_debug/causes/", copied)
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


def test_a_cause_is_one_folder_with_the_files_that_the_page_lists() -> None:
    listed = re.findall(r"^\| `(\w+\.\w+)` \|", section("A cause"), re.MULTILINE)
    there = (ROOT / "examples/skipped_steps").glob("*.*")
    assert sorted(listed) == sorted(path.name for path in there)


def test_the_shipped_causes_are_those_of_the_page_of_hypotheses() -> None:
    page = (ROOT / "docs" / "hypotheses.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^### ([a-z-]+)$", page, re.M)) == set(hypothesis_names())


def test_an_environment_is_one_folder_with_the_files_that_the_page_lists() -> None:
    listed = re.findall(r"^\| `(\w+\.\w+)` \|", section("An environment"), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in (ROOT / "examples/reverse").glob("*.*"))
