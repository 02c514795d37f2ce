"""A run's log is read whatever wrote it: the names of its columns, the shapes of its files, and a folder's."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from rlvr_debug.errors import InputError
from rlvr_debug.logs.log import logged_as, read_log
from rlvr_debug.logs.names import framework_of, known_names, names_of, quantities, resolve
from tests.test_diagnose import completions, healthy, log_of, rows_of


def test_every_name_is_resolved_to_its_quantity_and_no_other() -> None:
    for quantity in quantities():
        for framework, names in names_of(quantity).items():
            assert framework in known_names()["frameworks"]
            for name in names:
                found = resolve(name)
                assert found is not None
                assert found[0] == quantity, name
                upper = resolve(f"train/{name.upper()}")
                assert upper is not None
                assert upper[0] == quantity


@pytest.mark.parametrize("framework", known_names()["frameworks"])
def test_a_log_is_known_by_its_framework_s_names(framework: str) -> None:
    named = {q: names_of(q)[framework][0] for q in quantities() if names_of(q).get(framework)}
    if len(named) > 2:
        assert framework_of({q: f"train/{name}" for q, name in named.items()}) == framework
    for quantity, name in named.items():
        assert logged_as(quantity, framework) == name


def test_a_table_of_completions_is_the_same_as_parquet_csv_and_jsonl(tmp_path: Path) -> None:
    rows = completions([(1, f"p{i}", f"x{j}", i / 8) for i in range(8) for j in range(4)])
    frame = pd.DataFrame(rows)
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    logs = [read_log(tmp_path / f"a.{kind}") for kind in ("parquet", "csv", "jsonl")]
    for log in logs[1:]:
        pd.testing.assert_frame_equal(log.completions, logs[0].completions, check_dtype=False)


def test_a_chart_exported_from_weights_and_biases_is_read(tmp_path: Path) -> None:
    rows = rows_of(healthy(3))
    frame = pd.DataFrame(rows)
    names = {n: f"my run - train/{n}" for n in frame if n != "step"}
    export = frame.rename(columns={"step": "Step", **names})
    for name in list(names.values()):
        export[f"{name}__MIN"] = export[name]
        export[f"{name}__MAX"] = export[name]
    export.to_csv(tmp_path / "wandb.csv", index=False)
    log = read_log(tmp_path / "wandb.csv")
    pd.testing.assert_frame_equal(log.steps, log_of(rows).steps, check_like=True)


@pytest.mark.parametrize(("header", "said"), [("step,reward,", 1), ("step,reward,loss", 0)])
def test_a_column_without_a_name_is_left_out_and_said(
    header: str, said: int, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n1,0.5,3\n2,0.6,4\n", encoding="utf-8")
    notes = read_log(tmp_path / "a.csv").notes
    assert notes.count("a column without a name was left out") == said


def test_an_export_of_two_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text("Step,a - reward,b - reward\n1,0.1,0.2\n", encoding="utf-8")
    with pytest.raises(InputError, match="columns of 2 runs"):
        read_log(tmp_path / "two.csv")


def test_what_verl_writes_is_unwrapped(tmp_path: Path) -> None:
    lines = [
        json.dumps({"step": i, "data": {"critic/score/mean": 0.1 * i, "actor/lr": 1e-6}})
        for i in range(1, 5)
    ]
    (tmp_path / "verl.jsonl").write_text("\n".join(lines), encoding="utf-8")
    log = read_log(tmp_path / "verl.jsonl")
    assert log.series("reward").tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert log.series("learning_rate").size == 4


def test_the_last_checkpoint_of_a_folder_and_its_completions_are_read(tmp_path: Path) -> None:
    for number in (10, 9, 100):
        place = tmp_path / f"checkpoint-{number}"
        place.mkdir()
        history = {"log_history": [{"step": i, "reward": 0.1} for i in range(1, number + 1)]}
        (place / "trainer_state.json").write_text(json.dumps(history), encoding="utf-8")
    (tmp_path / "completions").mkdir()
    rows = completions([(1, "p", "x", 1.0), (1, "p", "y", 0.0)])
    pd.DataFrame(rows).to_parquet(tmp_path / "completions" / "completions_00001.parquet")
    log = read_log(tmp_path)
    assert len(log.steps) == 100
    assert len(log.completions) == 2


def test_of_two_logs_in_a_folder_none_is_guessed(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("step,reward\n1,0.5\n", encoding="utf-8")
    with pytest.raises(InputError, match="2 files that may be the log"):
        read_log(tmp_path)
