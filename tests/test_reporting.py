from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlvr_debug.arms import Run, runs
from rlvr_debug.config import load_params
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_json, write_jsonl
from rlvr_debug.hypotheses import load_hypothesis
from rlvr_debug.reporting.charts import effects_chart, learning_chart, write_svg
from rlvr_debug.reporting.pages import answer, write_pages
from rlvr_debug.reporting.record import fix, success_criteria
from rlvr_debug.reporting.tables import write_phase, write_tables

ROOT = Path(__file__).parents[1]
PARAMS = load_params(ROOT / "params.yaml")
MINIMUM = 0.1
SETTINGS = {"alpha": 0.05, "minimum_effect": MINIMUM, "environment": "musique"}
PAGE_SETTINGS = {**SETTINGS, "study": "made-up", "case": "sick", "trainer": "own"}
SLUGS = ["hidden-context", "kl-penalty", "library-functionality", "lora-weight-sync"]
BASELINE = 0.1
LONG = "an-arm-with-a-name-that-goes-on-for-long"

# held-out reward of each arm, as it comes out where hidden-context is the cause
CAUSE_FOUND = {
    "case": 0.1,
    "control": 0.5,
    "random-reward": 0.05,
    "gsm8k-control": 0.5,
    "attention-mask": 0.5,
    "attention-mask-alone": 0.1,
    LONG: 0.1,
    "null": 0.1,
    "gsm8k": 0.5,
}


class Study:
    """Result files of made-up runs, where a real study has them."""

    def __init__(
        self,
        results: Path,
        rewards: Mapping[str, float],
        seeds: Sequence[int] = (0, 1, 2),
        **training: Any,
    ) -> None:
        hypotheses: dict[str, Any] = {
            "hidden-context": {"arms": {"attention-mask": {"swap": ["attention_mask"]}}},
            "kl-penalty": {
                "arms": {
                    LONG: {"training": {"kl_beta": 0.0}},
                    "null": {"training": {"kl_estimator": "k2"}},
                }
            },
            "library-functionality": {"arms": {"gsm8k": {"environment": "gsm8k"}}},
            "lora-weight-sync": {"arms": {}},
        }
        params = {
            **PARAMS,
            "case": "sick",
            "cases": {"sick": {"faults": ["attention-from-loss-mask", "eos-not-trained"]}},
            "seeds": list(seeds),
            "hypotheses": hypotheses,
            "training": {**PARAMS["training"], "steps": 3, **training},
        }
        self.results = results
        self.runs: list[Run] = list(runs(params))
        assert {run.arm for run in self.runs} == set(rewards)
        for environment in ("musique", "gsm8k"):
            write_json(results / "baseline" / f"{environment}.json", self._evaluation(BASELINE))
        for run in self.runs:
            reward = rewards[run.arm] + 0.01 * run.seed
            write_json(self.folder(run) / "heldout.json", self._evaluation(reward))
            steps = [self._step(step, reward) for step in range(1, run.training.steps + 1)]
            write_jsonl(self.folder(run) / "metrics.jsonl", steps)
        self.probe(fails=("context-sensitivity",))

    def folder(self, run: Run) -> Path:
        return self.results / "runs" / run.environment / run.trained_as / str(run.seed)

    @staticmethod
    def _evaluation(reward: float) -> dict[str, Any]:
        return {name: {"reward": reward} for name in ("sampled", "greedy")}

    @staticmethod
    def _step(step: int, reward: float) -> dict[str, Any]:
        return {
            "step": step,
            "reward": BASELINE + (reward - BASELINE) * step / 3,
            "grad_norm": 1.0 / step,
            "kl": 0.01 * step,
            "sampler_gap/mean_abs": 0.001,
            "sampled_tokens": 100,
            "trained_tokens": 90,
        }

    def probe(self, fails: Sequence[str], **more: Any) -> None:
        names = ("context-sensitivity", "kl-estimator", "weight-sync")
        measured = {
            name: {
                "probe": name,
                "measured": {"change": 0.25},
                "bound": "above 0.1 nats",
                "reason": "what is read must matter",
                "passed": name not in fails,
                **more,
            }
            for name in names
        }
        write_json(self.results / "probes.json", measured)

    def tables(self, settings: Mapping[str, Any] = SETTINGS) -> dict[str, pd.DataFrame]:
        write_tables(self.runs, dict.fromkeys(SLUGS, 1), {}, [], settings, self.results)
        return self.read()

    def read(self) -> dict[str, pd.DataFrame]:
        return {
            path.stem: pd.read_csv(path, keep_default_na=False, na_values=[""])
            for path in (self.results / "tables").glob("*.csv")
        }

    def charts(self) -> dict[str, str]:
        tables = self.read()
        folder = self.results / "charts"
        write_svg(
            learning_chart(tables["curves"], list(tables["arms"]["arm"])), folder / "learning.svg"
        )
        write_svg(effects_chart(tables["arms"], MINIMUM), folder / "effects.svg")
        return {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.svg")}

    def pages(self, settings: Mapping[str, Any] = PAGE_SETTINGS) -> dict[str, str]:
        write_pages(self.results, settings, self.results / "pages")
        return {
            path.stem: path.read_text(encoding="utf-8")
            for path in (self.results / "pages").glob("*.html")
        }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study with tables, charts and pages; not to be changed."""
    study = Study(tmp_path_factory.mktemp("results"), CAUSE_FOUND)
    study.tables()
    study.charts()
    study.pages()
    return study


def files(folder: Path, *patterns: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for pattern in patterns
        for path in sorted(folder.glob(pattern))
    }


# --- tables


def test_more_runs_than_an_argument_can_hold_are_read(tmp_path: Path) -> None:
    study = Study(tmp_path, CAUSE_FOUND, seeds=range(6))
    told = json.dumps([run.to_json() for run in study.runs])
    told += " " * (2**17 - len(told) + 1)  # the system's limit for one argument is 128 KiB
    script = [sys.executable, str(ROOT / "scripts" / "write_tables.py"), "--runs", "/dev/stdin"]
    settings = ["--settings", json.dumps(SETTINGS), "--results", str(tmp_path)]
    phases = ["--phases", json.dumps(dict.fromkeys(SLUGS, 1)), "--unmapped", "{}"]
    subprocess.run([*script, *phases, *settings], input=told, text=True, check=True)
    assert len(study.read()["runs"]) == len(study.runs)


def test_every_run_has_a_row_with_the_columns_that_people_rely_on(finished: Study) -> None:
    table = finished.read()["runs"]
    assert set(table) >= {
        *("arm", "hypothesis", "environment", "seed", "steps", "learning_rate", "temperature"),
        *("sampled_tokens", "trained_tokens", "baseline_reward", "heldout_reward"),
        *("baseline_reward_greedy", "heldout_reward_greedy", "gain", "gain_greedy"),
    }
    assert len(table) == len(finished.runs) == 9 * 3
    row = table[(table["arm"] == "attention-mask") & (table["seed"] == 2)].iloc[0]
    assert (row["hypothesis"], row["environment"]) == ("hidden-context", "musique")
    assert (row["steps"], row["sampled_tokens"], row["trained_tokens"]) == (3, 300, 270)
    assert (row["baseline_reward"], row["heldout_reward"]) == (0.1, 0.52)
    assert row["gain"] == pytest.approx(0.42)
    assert row["changes"] == "without attention-from-loss-mask"
    assert (row["training_reward_last"], row["kl_max"], row["grad_norm_max"]) == (0.52, 0.03, 1.0)


def test_what_an_arm_changes_is_told_against_the_run_that_it_is_compared_with(
    finished: Study,
) -> None:
    arms = finished.read()["arms"].set_index("arm")["changes"]
    assert arms["attention-mask"] == "without attention-from-loss-mask"
    assert arms["attention-mask-alone"] == "with attention-from-loss-mask"
    assert arms["control"] == "without attention-from-loss-mask; without eos-not-trained"
    assert arms[LONG] == "kl_beta 0.04 → 0.0"
    assert arms["gsm8k"] == "environment gsm8k"


def test_every_hypothesis_has_a_row_with_the_columns_that_people_rely_on(finished: Study) -> None:
    table = finished.read()["verdicts"].set_index("hypothesis")
    assert set(table) >= {
        *("kind", "status", "confidence", "effect", "ci_low", "ci_high", "seeds", "evidence"),
    }
    assert table["status"].to_dict() == {
        "hidden-context": "validated",
        "kl-penalty": "invalidated",
        "library-functionality": "invalidated",
        "lora-weight-sync": "pending",
    }
    assert table.loc["hidden-context", "effect"] == pytest.approx(0.4)
    assert list(table["seeds"]) == [3, 3, 3, 0]


def test_the_metrics_are_json_and_tell_what_the_tables_do(finished: Study) -> None:
    text = (finished.results / "metrics.json").read_text(encoding="utf-8")
    metrics = json.loads(text, parse_constant=pytest.fail)
    assert metrics["verdicts"]["hidden-context"]["status"] == "validated"
    assert metrics["verdicts"]["hidden-context"]["effect"] == pytest.approx(0.4)
    assert metrics["verdicts"]["lora-weight-sync"] == {"status": "pending"}
    assert metrics["arms"]["control"]["gain"] == pytest.approx(0.41)
    assert metrics["baseline"]["gsm8k"]["reward"] == 0.1


def test_tables_pages_and_charts_are_the_same_bytes_when_written_again(finished: Study) -> None:
    patterns = ("tables/*", "charts/*", "pages/*", "metrics.json")
    before = files(finished.results, *patterns)
    assert len(before) == 4 + 2 + 6 + 1
    finished.tables()
    finished.charts()
    finished.pages()
    assert files(finished.results, *patterns) == before


def delete(path: Path) -> None:
    path.unlink()


def cut_within_a_line(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def cut_between_lines(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [delete, cut_within_a_line, cut_between_lines, empty])
@pytest.mark.parametrize(
    "name",
    [
        "probes.json",
        "baseline/gsm8k.json",
        "runs/musique/case/1/heldout.json",
        "runs/musique/case/1/metrics.jsonl",
    ],
)
def test_a_damaged_result_file_is_named_and_no_table_is_written(
    damage: Callable[[Path], None], name: str, tmp_path: Path
) -> None:
    study = Study(tmp_path, CAUSE_FOUND)
    damage(tmp_path / name)
    with pytest.raises(InputError) as caught:
        study.tables()
    assert str(caught.value).startswith(f"{tmp_path / name}:")
    assert "\n" not in str(caught.value)
    assert files(tmp_path, "tables/*", "metrics.json", "**/*.tmp") == {}


def test_a_study_of_one_seed_and_one_step_goes_through_and_claims_nothing(tmp_path: Path) -> None:
    """No spread, no slope: every interval is infinite, which neither JSON nor a chart can show."""
    study = Study(tmp_path, CAUSE_FOUND, seeds=[0], steps=1)
    tables = study.tables()
    assert not {"validated", "partially_validated"} & set(tables["verdicts"]["status"])
    assert tables["verdicts"].set_index("hypothesis").loc["hidden-context", "ci_high"] == math.inf
    json.loads((tmp_path / "metrics.json").read_text(), parse_constant=pytest.fail)
    for svg in study.charts().values():
        ET.fromstring(svg)
    assert "unclear" in study.pages()["summary"]


# --- charts


def texts(svg: str) -> set[str]:
    return {"".join(node.itertext()) for node in ET.fromstring(svg).iter() if "text" in node.tag}


@pytest.mark.parametrize("chart", ["learning", "effects"])
def test_a_chart_is_xml_and_names_every_arm_in_full(chart: str, finished: Study) -> None:
    shown = texts((finished.results / "charts" / f"{chart}.svg").read_text(encoding="utf-8"))
    arms = finished.read()["arms"].set_index("arm")
    expected = set(arms.index) if chart == "learning" else set(arms.dropna(subset=["effect"]).index)
    assert LONG in expected
    assert expected <= shown


def test_a_chart_of_a_healthy_case_has_no_panel_of_single_defects(tmp_path: Path) -> None:
    healthy = {name: reward for name, reward in CAUSE_FOUND.items() if not name.endswith("-alone")}
    study = Study.__new__(Study)
    study.results = tmp_path
    full = Study(tmp_path, CAUSE_FOUND)
    study.runs = [run for run in full.runs if run.arm in healthy]
    study.tables()
    shown = texts(study.charts()["effects"])
    assert "control" in shown
    assert not any("alone" in text for text in shown)


# --- pages


# what makes a browser load something, or go elsewhere
LOADS = re.compile(
    r"""(?:src|href|srcset|data|action|poster)\s*=\s*["']?(?!\#)[^"'\s>]+|url\((?!["']?\#)[^)]*\)|@import""",
    re.IGNORECASE,
)


def test_no_page_loads_anything(finished: Study) -> None:
    pages = finished.pages()
    assert set(pages) == {"summary", "experiments", *SLUGS}
    for page in pages.values():
        assert LOADS.findall(page) == []
        assert "<script" not in page
        assert set(re.findall(r"https?://[^\"'\s<]+", page)) <= {
            "http://www.w3.org/2000/svg",
            "http://www.w3.org/1999/xlink",
        }


def test_the_summary_begins_with_the_answer_and_shows_every_verdict_arm_and_probe(
    finished: Study,
) -> None:
    tables, page = finished.read(), finished.pages()["summary"]
    sentence, detail = answer(tables["verdicts"], tables["arms"], PAGE_SETTINGS)
    body = page[page.index("<h1>") :]
    found = re.search(r'<p class="answer">(.*?)</p>\s*<p>(.*?)</p>', body, re.DOTALL)
    assert found
    assert found.group(1).replace("&#39;", "'") == sentence
    assert found.group(2) == detail
    assert "Study made-up: the case sick" in page
    cells = {cell.strip() for cell in re.findall(r"<td[^>]*>([^<]*)", page)}
    assert cells >= {*SLUGS, *tables["arms"]["arm"], "validated", "invalidated", "pending"}
    assert cells >= {"context-sensitivity", "kl-estimator", "weight-sync", "fails", "passes"}
    assert page.count("<svg") == 2
    assert not {"nan", "inf", "+nan", "+inf"} & {cell.lower() for cell in cells}


def test_a_hypothesis_page_tells_its_claim_its_verdict_and_its_runs_only(finished: Study) -> None:
    page = finished.pages()["hidden-context"]
    assert load_hypothesis("hidden-context").success in page.replace("&#39;", "'")
    assert '<span class="validated">validated</span>' in page
    assert re.findall(r"<tr><td>([^<]+)<td>(\d)", page) == [
        (arm, str(seed))
        for arm in ("case", "control", "attention-mask", "attention-mask-alone")
        for seed in range(3)
    ]
    pending = finished.pages()["lora-weight-sync"]
    assert '<span class="pending">pending</span>' in pending


def test_the_interval_is_said_to_be_the_one_that_was_computed(tmp_path: Path) -> None:
    study = Study(tmp_path, CAUSE_FOUND)
    study.tables({**SETTINGS, "alpha": 0.2})
    study.charts()
    page = study.pages({**PAGE_SETTINGS, "alpha": 0.2})["summary"]
    assert "80 % interval" in page
    assert "95 %" not in page


def test_a_study_of_another_trainer_says_so_first(tmp_path: Path) -> None:
    study = Study(tmp_path, dict.fromkeys(CAUSE_FOUND, 0.1))
    study.tables()
    study.charts()
    summary = study.pages({**PAGE_SETTINGS, "trainer": "trl"})["summary"]
    assert "<h1>Study made-up: the case sick, trainer trl</h1>" in summary


def test_what_a_file_says_is_text_and_not_html(tmp_path: Path) -> None:
    evil = "<script>alert('&')</script>"
    study = Study(tmp_path, CAUSE_FOUND)
    study.probe(("context-sensitivity",), reason=evil, bound=evil)
    tables = study.tables()
    study.charts()
    tables["verdicts"]["evidence"] = evil
    tables["verdicts"].to_csv(tmp_path / "tables" / "verdicts.csv", index=False)
    tables["arms"]["changes"] = evil
    tables["arms"].to_csv(tmp_path / "tables" / "arms.csv", index=False)
    for page in study.pages({**PAGE_SETTINGS, "case": evil}).values():
        assert "<script" not in page
        assert "&lt;script&gt;alert(&#39;&amp;&#39;)&lt;/script&gt;" in page


def test_a_gate_that_found_a_cause_leaves_later_phases_out_and_says_so(tmp_path: Path) -> None:
    study = Study(tmp_path, CAUSE_FOUND)
    phases = {slug: 2 if slug == "kl-penalty" else 1 for slug in SLUGS}
    first = [run for run in study.runs if phases.get(run.hypothesis, 1) == 1]
    gate = tmp_path / "phase_1.json"
    write_phase(1, first, [s for s in SLUGS if phases[s] == 1], SETTINGS, tmp_path, gate)
    assert read_json(gate) == {"phase": 1, "causes": ["hidden-context"]}
    for run in study.runs:
        if run not in first:
            (study.folder(run) / "heldout.json").unlink()  # never run
    write_tables(study.runs, phases, {}, [gate], SETTINGS, tmp_path)
    verdicts = study.read()["verdicts"].set_index("hypothesis")
    assert verdicts.loc["kl-penalty", "status"] == "pending"
    assert verdicts.loc["kl-penalty", "evidence"] == (
        "not run: phase 1 found a cause (hidden-context)"
    )
    assert verdicts.loc["hidden-context", "status"] == "validated"


def test_a_gate_without_a_cause_opens_the_next_phase(tmp_path: Path) -> None:
    study = Study(tmp_path, dict.fromkeys(CAUSE_FOUND, 0.1))
    gate = tmp_path / "phase_1.json"
    write_json(gate, {"phase": 1, "causes": []})
    phases = {slug: 2 if slug == "kl-penalty" else 1 for slug in SLUGS}
    write_tables(study.runs, phases, {}, [gate], SETTINGS, tmp_path)
    assert (study.read()["verdicts"]["status"] != "pending").sum() == 3


def test_a_gain_under_random_rewards_is_said_before_anything_is_made_of_gains(
    tmp_path: Path,
) -> None:
    said = "Random rewards gain as well"
    assert said in answered(tmp_path / "gains", {"random-reward": 0.4})
    assert said not in answered(tmp_path / "flat", {"random-reward": 0.1})


def test_every_arm_says_what_it_changes_and_its_budget(finished: Study) -> None:
    arms = finished.read()["arms"].set_index("arm")
    assert arms.loc["attention-mask", "changes"] == "without attention-from-loss-mask"
    assert arms.loc["attention-mask-alone", "changes"] == "with attention-from-loss-mask"
    assert arms.loc[LONG, "changes"] == "kl_beta 0.04 → 0.0"
    runs = finished.read()["runs"]
    assert set(runs["rollouts"]) == {
        3 * PARAMS["training"]["prompts_per_step"] * PARAMS["training"]["group_size"]
    }


def test_the_original_s_criteria_are_computed_for_the_fix(finished: Study) -> None:
    tables = finished.read()
    found = success_criteria(tables["arms"], tables["runs"], tables["verdicts"], SETTINGS)
    assert fix(tables["arms"]) == "attention-mask"
    assert [criterion.met for criterion in found] == [True, True, True, True, None]
    assert found[-1].measured == "not run here"
    flat = Study(finished.results.parent / "flat", dict.fromkeys(CAUSE_FOUND, BASELINE - 0.02))
    tables = flat.tables()
    found = success_criteria(tables["arms"], tables["runs"], tables["verdicts"], SETTINGS)
    assert fix(tables["arms"]) == "control"
    assert [criterion.met for criterion in found] == [False, False, False, False, None]


# --- the answer


def answered(results: Path, rewards: Mapping[str, float], fails: Sequence[str] = ()) -> str:
    """The answer where `rewards` differ from those of a case that only the control mends."""
    flat = {name: 0.5 if "gsm8k" in name or name == "control" else 0.1 for name in CAUSE_FOUND}
    alone = {name: 0.5 for name in CAUSE_FOUND if name.endswith("-alone")}
    study = Study(results, {**flat, **alone, **rewards})
    study.probe(fails)
    tables = study.tables()
    sentence, figures = answer(tables["verdicts"], tables["arms"], PAGE_SETTINGS)
    assert "over 3 seeds" in figures
    return sentence


def test_the_answer_names_the_cause_that_was_found(tmp_path: Path) -> None:
    said = answered(tmp_path, {"attention-mask": 0.5}, ("context-sensitivity",))
    assert said.startswith("The run does not learn. Cause found: ")
    assert load_hypothesis("hidden-context").claim in said
    assert load_hypothesis("kl-penalty").claim not in said


def test_the_answer_names_all_causes_the_strongest_first(tmp_path: Path) -> None:
    rewards = {"attention-mask": 0.3, LONG: 0.5}
    said = answered(tmp_path, rewards, ("context-sensitivity", "kl-estimator"))
    assert said.startswith("The run does not learn. 2 causes found: ")
    claims = [load_hypothesis(slug).claim for slug in ("kl-penalty", "hidden-context")]
    places = [said.index(claim) for claim in claims]
    assert places == sorted(places)


def test_the_answer_to_a_run_that_learns_is_that_it_learns(tmp_path: Path) -> None:
    said = answered(tmp_path, {"case": 0.5, "attention-mask": 0.5, "null": 0.5, LONG: 0.5})
    assert said == "The run learns. No hypothesis is validated."


def test_where_only_mending_everything_helps_the_answer_says_so(tmp_path: Path) -> None:
    said = answered(tmp_path, {})
    assert said.startswith("The run does not learn. Mending everything helps, but no single hyp")


def test_where_the_control_fails_too_the_answer_blames_no_hypothesis(tmp_path: Path) -> None:
    said = answered(tmp_path, {"control": 0.1, "attention-mask-alone": 0.1})
    assert said.startswith("The run does not learn. Nor does the healthy control: ")
    assert "ause found" not in said


def test_a_localiser_is_never_the_cause(tmp_path: Path) -> None:
    said = answered(tmp_path, {"gsm8k": 0.1})
    verdicts = pd.read_csv(tmp_path / "tables" / "verdicts.csv").set_index("hypothesis")
    assert verdicts.loc["library-functionality", "status"] == "validated"
    assert "ause found" not in said
