from __future__ import annotations

import json
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlvr_debug.errors import InputError
from rlvr_debug.files import write_json, write_text
from rlvr_debug.report.charts import revisions_chart
from rlvr_debug.report.compare import beside_committed, compare, read_results

ROOT = Path(__file__).parents[1]
VERDICTS = "hypothesis,kind,status,confidence,effect,ci_low,ci_high\n"
KL = "kl-penalty,cause,{status},high,{effect},-0.05,0.04\nmulti-step,localiser,pending,,,,\n"


class Repository:
    """A git repository with the tracked results of a made-up study."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q")

    def git(self, *arguments: str) -> str:
        author = ("-c", "user.name=someone", "-c", "user.email=some@one")
        command = ["git", *author, *arguments]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def write(
        self,
        status: str = "invalidated",
        effect: float = 0.01,
        gain: float = 0.02,
        reward: float = 0.5,
        params: str = "training: {steps: 22, clip: 0.2}\n",
        arms: tuple[str, ...] = ("case",),
    ) -> None:
        tables = self.root / "results" / "tables"
        write_text(tables / "verdicts.csv", VERDICTS + KL.format(status=status, effect=effect))
        write_json(self.root / "results" / "metrics.json", {"arms": {"case": {"gain": gain}}})
        rows = [
            f"{arm},case,musique,{seed},{step},{reward + 0.1 * seed},0,1"
            for arm in arms
            for seed in (0, 1)
            for step in (1, 2, 3)
        ]
        header = "arm,design,environment,seed,step,reward,kl,grad_norm"
        write_text(tables / "curves.csv", "\n".join([header, *rows, ""]))
        write_text(self.root / "params.yaml", params)

    def commit(self, **values: Any) -> str:
        self.write(**values)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "results")
        return self.git("rev-parse", "HEAD")

    def compare(self, revision: str, other: str | None = None) -> str:
        return compare(revision, other, self.chart, self.root).text

    @property
    def chart(self) -> Path:
        return self.root / "results" / "compare.svg"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def rows(text: str, part: str) -> list[list[str]]:
    """The cells of that part's table, without its header."""
    [section] = [each for each in text.split("## ") if each.startswith(f"{part}\n")]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines[2:]]


def test_only_what_differs_is_told_with_both_values(repository: Repository) -> None:
    first = repository.commit()
    repository.write("validated", 0.3, gain=0.25, params="training: {steps: 40, clip: 0.2}\n")
    text = repository.compare(first)
    old, new = "invalidated (high): +0.010 [-0.050, +0.040]", "validated (high): +0.300"
    assert rows(text, "verdicts") == [["kl-penalty", old, f"{new} [-0.050, +0.040]", ""]]
    assert rows(text, "metrics") == [["arms.case.gain", "0.02", "0.25", "+0.23"]]
    assert rows(text, "params") == [["training.steps", "22", "40", "+18"]]
    assert f"| hypothesis | {first} | working tree | change |" in text


def test_what_only_one_revision_has_is_told(repository: Repository) -> None:
    first = repository.commit()
    second = repository.commit(params="training: {steps: 22}\nphases: a|b\noptions: {}\n")
    assert rows(repository.compare(first, second), "params") == [
        ["options", "-", "{}", ""],
        ["phases", "-", "a\\|b", ""],
        ["training.clip", "0.2", "-", ""],
    ]


def test_json_has_the_values_themselves_and_none_of_what_is_missing(repository: Repository) -> None:
    first = repository.commit()
    repository.write("validated", 0.3, gain=0.25, params="training: {steps: 40}\n")
    found = compare(first, None, repository.chart, repository.root).to_json()
    assert json.loads(json.dumps(found)) == found
    assert (found["old"], found["new"]) == (first, "working tree")
    assert found["metrics"] == {"arms.case.gain": {"old": 0.02, "new": 0.25}}
    assert found["params"] == {
        "training.clip": {"old": 0.2},
        "training.steps": {"old": 22, "new": 40},
    }
    assert found["verdicts"]["kl-penalty"]["new"].startswith("validated (high): +0.300")
    assert found["chart"] == str(repository.chart)
    assert repository.chart.is_file()


def test_two_revisions_are_compared_and_not_the_working_tree(repository: Repository) -> None:
    first, second = repository.commit(), repository.commit(gain=0.5)
    repository.write(gain=0.9)
    assert rows(repository.compare(first, second), "metrics")[0][1:3] == ["0.02", "0.5"]
    assert rows(repository.compare(first), "metrics")[0][1:3] == ["0.02", "0.9"]


def test_a_run_says_which_committed_figures_are_others_here(repository: Repository) -> None:
    """Another processor gives other last digits."""
    assert beside_committed(repository.root) == []  # nothing is committed
    repository.commit()
    assert beside_committed(repository.root) == [
        "All 1 figures and all verdicts are the committed ones."
    ]
    repository.write(effect=0.0101, gain=0.0201)
    [said, largest] = beside_committed(repository.root)
    assert said.startswith(
        "1 of 1 figures differ from the committed ones, and no verdict is another"
    )
    assert largest == "  arms.case.gain: 0.02 to 0.0201 (+0.0001)"
    repository.write("validated", 0.3)
    [said, verdict] = beside_committed(repository.root)
    assert said.startswith("0 of 1 figures differ")
    assert "1 of 2 verdicts are another" in said
    assert verdict.startswith("  kl-penalty: invalidated (high): +0.010")
    assert " to validated (high): +0.300" in verdict
    # of another study they have to differ
    repository.write(gain=0.9, params="training: {steps: 40, clip: 0.2}\n")
    assert beside_committed(repository.root) == []


def test_of_many_gains_that_differ_the_largest_changes_are_told(repository: Repository) -> None:
    metrics = repository.root / "results" / "metrics.json"

    def gains(*values: float) -> dict[str, Any]:
        return {f"arm-{i}": {"gain": value, "slope": 9 * value} for i, value in enumerate(values)}

    repository.commit()
    write_json(metrics, {"arms": gains(0.1, 0.2, 0.3, 0.4)})
    repository.git("commit", "-qam", "results")
    write_json(metrics, {"arms": gains(0.11, 0.2, 0.1, 0.45)})
    [said, *told] = beside_committed(repository.root)
    assert said.startswith("6 of 8 figures differ")
    assert [line.split(":")[0] for line in told] == [
        "  arms.arm-2.gain", "  arms.arm-3.gain", "  arms.arm-0.gain"
    ]  # fmt: skip


def test_an_overlay_s_study_is_held_to_what_is_committed_below_results(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study that is no stage of DVC works where git tracks nothing."""
    study = repository.root / "studies" / "mine"
    repository.write()
    write_json(repository.root / "results" / "study.json", {"params": {"seeds": [0]}})
    shutil.copytree(repository.root / "results", study / "results")
    shutil.move(repository.root / "results", repository.root / "mine")
    shutil.move(repository.root / "mine", repository.root / "results" / "mine")
    (repository.root / ".gitignore").write_text("/studies\n")
    repository.git("add", "-A")
    repository.git("commit", "-qm", "results")
    monkeypatch.setattr("rlvr_debug.report.compare.ROOT", repository.root)
    [said] = beside_committed(study, overlaid=True)
    assert said == "All 1 figures and all verdicts are the committed ones."
    write_json(study / "results" / "metrics.json", {"arms": {"case": {"gain": 0.5}}})
    [said, largest] = beside_committed(study, overlaid=True)
    assert "(those are in results/mine)" in said
    assert largest == "  arms.case.gain: 0.02 to 0.5 (+0.48)"


def test_results_that_are_the_same_are_one_line_and_no_chart(repository: Repository) -> None:
    repository.commit()
    said = repository.compare("HEAD")
    assert said == "HEAD and working tree have the same verdicts, metrics, params and curves."
    assert not repository.chart.exists()


def test_curves_that_differ_alone_are_drawn(repository: Repository) -> None:
    repository.commit()
    repository.write(reward=0.7)
    assert repository.compare("HEAD").count("The same in HEAD and working tree.") == 3
    ET.parse(repository.chart)


def lines_of(chart: Mapping[str, Any]) -> dict[tuple[str, str], list[float]]:
    """Rewards by arm and revision."""
    [data] = chart["datasets"].values()
    found: dict[tuple[str, str], list[float]] = {}
    for row in data:
        found.setdefault((row["arm"], row["revision"]), []).append(round(row["reward"], 6))
    return found


def test_the_chart_has_each_arm_s_mean_over_seeds_the_older_one_dashed(
    repository: Repository,
) -> None:
    repository.commit(arms=("case", "gone"))
    repository.write(reward=0.7, arms=("new", "case"))
    repository.compare("HEAD")
    old, new = read_results("HEAD", repository.root), read_results(None, repository.root)
    chart = revisions_chart({each.name: each.curves for each in (old, new)}).to_dict()
    assert lines_of(chart) == {
        ("case", "HEAD"): [0.55] * 3,
        ("gone", "HEAD"): [0.55] * 3,
        ("case", "working tree"): [0.75] * 3,
        ("new", "working tree"): [0.75] * 3,
    }
    dash = chart["spec"]["encoding"]["strokeDash"]["scale"]
    assert dict(zip(dash["domain"], dash["range"], strict=True)) == {
        "HEAD": [4, 3],
        "working tree": [1, 0],
    }
    drawn = repository.chart.read_text(encoding="utf-8")
    assert "stroke-dasharray" in drawn
    assert all(f">{arm}</text>" in drawn for arm in ("case", "gone", "new"))


@pytest.mark.parametrize("revision", ["nope", "", "--all", "HEAD:params.yaml", "a b", "HEAD~9"])
def test_a_revision_that_does_not_exist_is_one_line(repository: Repository, revision: str) -> None:
    repository.commit()
    for pair in ((revision, None), ("HEAD", revision)):
        with pytest.raises(InputError) as caught:
            repository.compare(*pair)
        assert str(caught.value).startswith(f"revision '{revision}': not found in git")


PATHS = ["results/tables/verdicts.csv", "results/tables/curves.csv", "results/metrics.json"]


@pytest.mark.parametrize("path", [*PATHS, "params.yaml"])
def test_a_missing_or_broken_file_is_one_line_that_names_it(
    repository: Repository, path: str
) -> None:
    good = repository.commit()
    (repository.root / path).unlink()
    with pytest.raises(InputError, match=rf"^{path}: No such file"):
        repository.compare(good)
    repository.git("commit", "-qam", "without")
    with pytest.raises(InputError, match=rf"^HEAD:{path}: not found in git"):
        repository.compare("HEAD", good)
    for text in ("", "{", "- 1\n", "a,b\n1,2\n"):
        write_text(repository.root / path, text)
        with pytest.raises(InputError, match=rf"^{path}:"):
            repository.compare(good)


def test_a_study_in_a_folder_of_a_larger_repository_is_found(repository: Repository) -> None:
    inner = Repository.__new__(Repository)
    inner.root = repository.root / "inner"
    inner.commit()
    inner.write(gain=0.5)
    assert rows(inner.compare("HEAD"), "metrics")[0][1:3] == ["0.02", "0.5"]


def test_an_overlay_s_study_has_its_parameters_from_what_it_resolved_to(
    repository: Repository,
) -> None:
    resolved = repository.root / "results" / "study.json"
    write_json(resolved, {"params": {"case": "as-released"}, "runs": {}})
    first = repository.commit()
    (repository.root / "params.yaml").unlink()
    write_json(resolved, {"params": {"case": "patched"}, "runs": {}})
    found = compare(first, None, repository.chart, repository.root, overlaid=True)
    assert rows(found.text, "params") == [["case", "as-released", "patched", ""]]
