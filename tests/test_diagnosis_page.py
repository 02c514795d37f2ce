"""The page of a diagnosis: what was found, curves with the place marked, rollouts, and nothing but text of a log's or a model's."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlvr_debug.cli import main
from rlvr_debug.diagnosis.compare import compare
from rlvr_debug.diagnosis.evidence import curve, evidence
from rlvr_debug.diagnosis.rank import Diagnosis, diagnose, diagnose_log
from rlvr_debug.logs.log import make_log
from rlvr_debug.logs.structured import Rows
from rlvr_debug.report.diagnosis_page import HEIGHT, WIDTH, comparison_html, diagnosis_html, drawn
from tests.in_process import called
from tests.test_diagnose import REAL

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>"
CALL = {"role": "assistant", "content": "", "tool_calls": [{"name": "look_up"}]}


def found(name: str) -> Diagnosis:
    return diagnose(REAL / name, gpus=0)


def shown(diagnosis: Diagnosis, check: str) -> Any:
    [finding] = [each for each in diagnosis.findings if each.check.name == check]
    return evidence(finding, diagnosis.log)[1]


def numbers(path: str) -> list[float]:
    return [float(each) for each in re.findall(r"-?[\d.]+", path)]


def test_a_page_has_every_suspect_with_its_reason_what_refutes_it_and_its_curve() -> None:
    diagnosis = found("kl-blow-up")
    page = diagnosis_html(diagnosis)
    assert "Most likely gradient-explosion (" in page
    for each in diagnosis.ranked:
        assert each.slug in page
        assert each.next.what in page
        assert each.refuted_by.replace("`", "") in page.replace("&#39;", "'")
        assert each.change in page
    for slug in diagnosis.unseen:
        assert f'<th scope="row">{slug}</th><td>The reward does not rise' in page
    for finding in diagnosis.findings:
        if finding.status == "unchecked":
            assert f'<th scope="row">{finding.check.name}</th>' in page
    [section] = re.findall(r'id="kl-runs-away">(.*?)</section>', page, re.S)
    assert section.count("<svg") == 2
    assert section.count('class="band"') == 2
    assert "steps 56 to 80: median 7.25" in section


def test_a_page_loads_nothing_and_runs_nothing() -> None:
    one, other = found("kl-blow-up"), found("healthy-gsm8k")
    for page in (diagnosis_html(one), comparison_html(compare(other, one))):
        assert not re.search(r"<script|<img|<link|(?:src|href)=|url\(|@import", page)
        assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page


def test_what_a_log_and_a_model_say_is_text() -> None:
    rows = [{"step": n, "reward": 0.5, f"rewards/{EVIL}/mean": 0.5} for n in range(1, 13)]
    said = [
        {"step": 1, "prompt": EVIL, "completion": json.dumps([CALL | {"content": EVIL}])},
        {"step": 1, "prompt": EVIL, "completion": EVIL},
    ]
    log = make_log(EVIL, [Rows("JSONL", rows), Rows("JSONL", said)])
    one = diagnose_log(log, gpus=0)
    for page in (diagnosis_html(one), comparison_html(compare(one, found("kl-blow-up")))):
        assert "<script" not in page
        assert "<img" not in page
        assert "&lt;script&gt;" in page


def test_rollouts_that_a_check_names_are_those_that_show_it_with_the_place_marked() -> None:
    calls = shown(found("kl-blow-up"), "unanswered-calls")
    assert calls
    for each in calls:
        assert each.shows
        [*before, (who, [(last, marked)])] = each.turns
        assert (who, marked) == ("completion, assistant", True)
        assert "<tool_call>" in last or "function" in last
        assert not any(mark for _, pieces in before for _, mark in pieces)
    copies = shown(found("duplicates"), "duplicates")
    assert len({each.turns for each in copies}) == 1
    assert len(copies) == 4


def test_rollouts_of_the_step_nearest_to_the_place_stand_beside_a_curve() -> None:
    late = shown(found("kl-blow-up"), "kl-runs-away")
    assert [each.step for each in late] == [72, 72]
    assert not any(each.shows for each in late)
    least, most = (each.reward for each in late)
    assert least < most


def test_what_tools_say_alike_is_marked_and_nothing_beside_it() -> None:
    tool = {"role": "tool", "content": "  no such document\n"}
    talk = json.dumps([CALL, tool, {"role": "assistant", "content": "so no such document"}])
    rows = [{"step": 1, "prompt": f"p{n}", "completion": talk} for n in range(8)]
    diagnosis = diagnose_log(make_log("made-up", [Rows("JSONL", rows)]), gpus=0)
    alike = shown(diagnosis, "tools-alike")
    [first, *_] = alike
    marked = [text for _, pieces in first.turns for text, mark in pieces if mark]
    assert set(marked) == {"no such document"}


@pytest.mark.parametrize(
    ("at", "places", "value"),
    [
        ("start", [(1, 2)], 1.5),
        ("end", [(9, 12)], 10.5),
        ("ends", [(1, 4), (9, 12)], 10.5),
        ("largest", [(12, 12)], 12),
        ("run", [(1, 12)], 6.5),
    ],
)
def test_the_rows_that_a_check_looks_at_are_the_ones_marked(
    at: str, places: list[tuple[float, float]], value: float
) -> None:
    rows = [{"step": n, "kl": float(n)} for n in range(1, 13)]
    mark = curve(make_log("made-up", [Rows("JSONL", rows)]), "kl", at).mark
    assert mark is not None
    assert list(mark.spans) == places
    assert mark.value == value


@pytest.mark.parametrize(
    "values", [[0.5], [0.0] * 6, [1e-300, 1e300] * 4, [0.0] * 9 + [1e6], [-5.0, 5.0], [3e4] * 5]
)
def test_a_curve_of_any_values_is_drawn_inside_its_box(values: list[float]) -> None:
    rows = [{"step": n, "kl": value} for n, value in enumerate(values, start=1)]
    log = make_log("made-up", [Rows("JSONL", rows)])
    if log.steps.empty:
        pytest.skip("nothing finite is logged")
    chart = drawn([curve(log, "kl", "run")])
    places = np.array(numbers(chart.lines[0].removesuffix("h2"))).reshape(-1, 2)
    assert len(places) == log.series("kl").size
    assert (places >= 0).all()
    assert (places <= [WIDTH, HEIGHT]).all()
    assert chart.level is not None
    assert 0 <= chart.level <= HEIGHT
    assert chart.band is not None
    assert all(0 <= place <= HEIGHT for place, _ in chart.yticks)


def test_a_long_curve_is_a_short_line_that_keeps_its_spike() -> None:
    rows = [{"step": n, "grad_norm": 9.0 if n == 31_234 else 1.0} for n in range(1, 50_001)]
    log = make_log("made-up", [Rows("JSONL", rows)])
    chart = drawn([curve(log, "grad_norm", "largest")])
    assert len(chart.lines[0]) < 20_000
    heights = np.array(numbers(chart.lines[0])).reshape(-1, 2)[:, 1]
    assert chart.level == pytest.approx(heights.min(), abs=0.1)


def test_two_logs_are_drawn_over_each_other_from_where_they_part() -> None:
    both = compare(found("healthy-gsm8k"), found("kl-blow-up"))
    page = comparison_html(both)
    assert "They part first in learning_rate, from step 2 on." in page
    [section] = re.findall(r'id="partings">(.*?)</section>', page, re.S)
    assert section.count("<svg") == len(both.partings)
    assert section.count('class="line other"') == len(both.partings)
    assert "apart from step 4; last third: A 0.0873, B 10.03" in section
    assert "Logged in B alone: tool_calls, tool_failures." in page


def test_a_page_is_written_whole_or_its_name_is_refused_before_a_log_is_read(
    tmp_path: Path,
) -> None:
    place, file = str(REAL / "duplicates"), tmp_path / "new" / "page.html"
    for option in ("--html", "--overlay-out"):
        done = called(main, "rlvr-debug", "diagnose", "no-such-log", option, str(file))
        assert done.stderr == (
            f"error: {option}: {file} is in {file.parent}, which does not exist, expected a folder\n"
        )
        assert not file.parent.exists()
    file.parent.mkdir()
    for words in ([place], [place, str(REAL / "healthy-gsm8k")]):
        done = called(main, "rlvr-debug", "diagnose", *words, "--html", str(file))
        assert (done.returncode, done.stderr) == (0, f"{file}: written\n")
        assert file.read_text(encoding="utf-8").rstrip().endswith("</html>")
        assert [each.name for each in file.parent.iterdir()] == ["page.html"]
    done = called(main, "rlvr-debug", "diagnose", "no-such-log", "--html", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == f"error: --html: {tmp_path} is a folder, expected a file\n"
