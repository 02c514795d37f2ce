"""A run's log is read whatever wrote it: a trainer, another framework, or a logger by its maker's library."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.errors import InputError
from rlvr_debug.logs.log import Log, logged_as, read_log
from rlvr_debug.logs.names import framework_of, known_names, names_of, quantities, resolve
from rlvr_debug.logs.readers import read_rows
from tests.in_process import called
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
    with pytest.raises(
        InputError, match=r"two\.csv:1: found 2 runs \('a', 'b'\), expected one run's"
    ):
        read_log(tmp_path / "two.csv")


@pytest.mark.parametrize("column", ["run", "Run_ID"])
def test_a_history_with_a_column_of_runs_is_read_for_the_one_that_is_named(
    column: str, tmp_path: Path
) -> None:
    """Rows of the other run were dropped, step by step."""
    path = tmp_path / "history.csv"
    rows = [f"{run},{n},{n / top}" for run, top in (("good", 8), ("bad", 80)) for n in range(4)]
    path.write_text("\n".join([f"{column},_step,reward", *rows, ",9,0.5"]), encoding="utf-8")
    with pytest.raises(InputError, match=r"found 2 runs \('bad', 'good'\), .*, or --run NAME$"):
        read_log(path)
    with pytest.raises(InputError, match="found no run 'goood', did you mean 'good'"):
        read_log(path, "goood")
    log = read_log(path, "good")
    assert log.series("reward").tolist() == [0, 0.125, 0.25, 0.375]
    assert log.notes == ()


@pytest.mark.parametrize("name", ["key", "tag", "metric"])
def test_a_table_with_a_value_per_row_has_a_row_per_step(name: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    lines = [f"run,{name},value,timestamp,step"]
    lines += [f"a,{key},{n / 8},17,{n}" for key in ("reward", "kl") for n in range(3)]
    path.write_text("\n".join(lines), encoding="utf-8")
    log = read_log(path)
    assert log.steps.index.tolist() == [0, 1, 2]
    assert log.series("reward").tolist() == log.series("kl").tolist() == [0, 0.125, 0.25]
    path.write_text("\n".join([*lines, "b,reward,0.5,17,0"]), encoding="utf-8")
    with pytest.raises(InputError, match=r"metrics\.csv:1: found 2 runs \('a', 'b'\)"):
        read_log(path)


def test_values_of_steps_that_lack_a_metric_are_read_as_a_spreadsheet_shows_them(
    tmp_path: Path,
) -> None:
    """It raised KeyError."""
    path = tmp_path / "metrics.csv"
    path.write_text("key;step;value\nreward;1;0,25\nreward;2;0,5\nkl;3;1,5%", encoding="utf-8")
    log = read_log(path)
    assert log.series("reward").tolist() == [0.25, 0.5]
    assert log.series("kl").tolist() == pytest.approx([0.015])


@pytest.mark.parametrize(
    ("tag", "quantity"),
    [("train_reward", "reward"), ("Train_Reward", "reward"), ("actor_grad_norm", "grad_norm")],
)
def test_a_chart_of_tensorboard_is_named_by_its_file(
    tag: str, quantity: str, tmp_path: Path
) -> None:
    path = tmp_path / f"run-Sep01_10-22-11_node3-tag-{tag}.csv"
    path.write_text("Wall time,Step,Value\n1.5,5,0.25\n2.5,10,0.5", encoding="utf-8")
    log = read_log(path)
    assert (log.steps.index.tolist(), log.series(quantity).tolist()) == ([5, 10], [0.25, 0.5])


@pytest.mark.parametrize(
    ("text", "rewards", "rates"),
    [
        ("step;reward;lr\n1;0,25;0,000001\n2;0,5;0,000001", [0.25, 0.5], [1e-6, 1e-6]),
        ("step;reward;lr\n1,000;25.0%;1e-6\n2,000;50.0%;1e-6", [0.25, 0.5], [1e-6, 1e-6]),
        ('step,reward,lr\n1,"1,250.5",1e-6\n2,"1,500.0",nan', [1250.5, 1500], [1e-6]),
        ('step,reward,note\n1,0.25,"a, b"\n2,0.5,50%', [0.25, 0.5], []),
    ],
)
def test_numbers_are_read_as_a_spreadsheet_shows_them(
    text: str, rewards: list[float], rates: list[float], tmp_path: Path
) -> None:
    path = tmp_path / "sheet.csv"
    path.write_text(text, encoding="utf-8")
    log = read_log(path)
    assert (log.series("reward").tolist(), log.series("learning_rate").tolist()) == (rewards, rates)


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


# --- other frameworks


PLACE = ROOT / "tests" / "loggers"
ROWS = 12  # of each file
TOLD: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
    (PLACE / "names.yaml").read_text(encoding="utf-8")
)
NOT_READ = {None, "part", "shadowed"}


def value(step: int) -> float:
    """Return a made-up value, another one at each step."""
    return 0.1 + 0.05 * step


def written(framework: str, folder: Path) -> Path:
    """Return a log with all names of a framework, of which those of a held-out score stand in every fourth row."""
    rows: list[dict[str, float]] = []
    for step in range(1, ROWS + 1):
        names = TOLD[framework]["names"]
        row = {
            name: value(step) + place for place, name in enumerate(names) if names[name] != "step"
        }
        kept = {
            name: number
            for name, number in row.items()
            if names[name] != "heldout" or step % 4 == 0
        }
        [counter] = [name for name, quantity in names.items() if quantity == "step"]
        rows.append({counter: step, **kept})
    path = folder / f"{framework}.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def assert_understood(log: Log, framework: str) -> None:
    names: Mapping[str, str | None] = TOLD[framework]["names"]
    expected = {quantity: name for name, quantity in names.items() if quantity not in NOT_READ}
    assert dict(log.sources) == expected
    assert set(log.unknown) == {name for name, quantity in names.items() if quantity is None}
    assert framework_of(log.sources) == framework


@pytest.mark.parametrize("framework", TOLD)
def test_every_figure_of_a_framework_is_read_as_what_it_is(framework: str, tmp_path: Path) -> None:
    path = written(framework, tmp_path)
    log = read_log(path)
    assert_understood(log, framework)
    assert log.series("reward").size == ROWS
    if "heldout" in log.sources:
        assert log.series("heldout").size == ROWS // 4
    parts = [name for name, quantity in TOLD[framework]["names"].items() if quantity == "part"]
    assert log.parts.shape[1] == len(parts)
    done = called(main, "rlvr-debug", "diagnose", str(path))
    assert (done.returncode, done.stderr) == (0, "")


def test_what_verl_logs_itself_is_read() -> None:
    log = read_log(PLACE / "verl.jsonl")
    assert len(log.steps) == ROWS
    assert framework_of(log.sources) == "verl"
    for quantity, name in {
        "reward": "critic/score/mean",
        "length": "response_length/mean",
        "length_max": "response_length/max",
        "truncated": "response_length/clip_ratio",
        "prompt_truncated": "prompt_length/clip_ratio",
        "advantage_mean": "critic/advantages/mean",
        "advantage_max": "critic/advantages/max",
        "sampler_prob_gap": "training/rollout_probs_diff_mean",
        "sampler_pearson": "training/rollout_actor_probs_pearson_corr",
        "sampler_kl": "rollout_corr/k3_kl",
        "sampler_ratio_min": "rollout_corr/rollout_is_min",
        "correction_ess": "rollout_corr/rollout_is_eff_sample_size",
        "correction_weight": "rollout_corr/rollout_is_mean",
        "correction_masked": "rollout_corr/rollout_rs_masked_fraction",
        "seconds": "timing_s/step",
    }.items():
        assert log.sources[quantity] == name
        assert log.series(quantity).size == ROWS


def test_what_openrlhf_s_logger_writes_is_read() -> None:
    log = read_log(PLACE / "openrlhf")
    assert log.kind == "TensorBoard's events"
    names = TOLD["openrlhf"]["names"]
    read = {q: n for n, q in names.items() if q not in {*NOT_READ, "heldout", "step"}}
    assert {quantity: log.sources[quantity] for quantity in read} == read
    assert log.series("grad_norm") == pytest.approx([value(step) for step in range(1, ROWS + 1)])


# --- what loggers write themselves, read with their makers' libraries


KEPT = ROOT / "tests" / "loggers" / "run-0.31.0.wandb"
WANDB = f"""
import wandb
quiet = wandb.Settings(console="off", disable_git=True, x_disable_stats=True, x_disable_meta=True)
run = wandb.init(project="p", settings=quiet)
for step in range(1, {ROWS} + 1):
    run.log({{"train/reward": 0.5, "train/kl": 0.01 * step, "train/global_step": step}})
run.finish()
"""


def events(folder: Path) -> Path:
    """Write a file as TRL's trainer does by report_to="tensorboard", and return its path."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))
    writer.add_text("args", "{}")
    for step in range(1, ROWS + 1):
        writer.add_scalar("train/reward", 0.5, step)
        writer.add_scalar("train/kl", 0.01 * step, step)
    writer.close()
    [path] = folder.glob("*tfevents*")
    return path


def test_scalars_of_tensorboard_are_rows_by_step(tmp_path: Path) -> None:
    path = events(tmp_path / "runs" / "Nov25_host")
    for place in (path, path.parent, tmp_path):
        log = read_log(place)
        assert log.kind == "TensorBoard's events"
        assert log.series("reward").tolist() == [0.5] * ROWS
        assert log.series("kl") == pytest.approx([0.01 * n for n in range(1, ROWS + 1)])
        assert list(log.steps.index) == list(range(1, ROWS + 1))


def test_events_of_several_runs_are_not_mixed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        events(tmp_path / "runs" / name)
    with pytest.raises(InputError, match=r"found the logs of 2 runs \(runs/one, runs/two\)"):
        read_log(tmp_path)


def test_a_run_that_went_on_in_another_file_of_events_is_one(tmp_path: Path) -> None:
    first = events(tmp_path)
    first.rename(tmp_path / "events.out.tfevents.1.host")
    events(tmp_path / "later").rename(tmp_path / "events.out.tfevents.2.host")
    (tmp_path / "later").rmdir()
    assert read_log(tmp_path).series("kl").size == ROWS


def test_a_run_that_wandb_keeps_offline_is_read_as_it_lies_there(tmp_path: Path) -> None:
    given = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    subprocess.run([sys.executable, "-c", WANDB], cwd=tmp_path, env=given, check=True, timeout=120)
    for place in (tmp_path, tmp_path / "wandb"):
        log = read_log(place)
        assert log.kind == "a run of Weights & Biases"
        assert log.series("kl") == pytest.approx([0.01 * n for n in range(1, ROWS + 1)])


def test_a_run_of_a_newer_wandb_is_read_too() -> None:
    found = read_rows(KEPT)
    assert len(found.rows) == 15
    assert found.notes == ()
    log = read_log(KEPT)
    assert log.sources["step"] == "train/global_step"
    assert log.series("kl") == pytest.approx([0.01 * n for n in range(1, 16)])
    assert found.rows[0]["nested/a"] == 1


def test_a_run_that_was_killed_is_read_up_to_there(tmp_path: Path) -> None:
    data = KEPT.read_bytes()
    path = tmp_path / "run-x.wandb"
    path.write_bytes(data[: len(data) // 2])
    found = read_rows(path)
    assert 0 < len(found.rows) < 15
    assert found.notes == (f"the file is cut off or broken after row {len(found.rows)}",)
    whole = events(tmp_path / "events")
    part = tmp_path / "events.out.tfevents.1.host"
    part.write_bytes(whole.read_bytes()[:-200])
    assert 0 < read_log(part).series("kl").size < ROWS


@pytest.mark.parametrize("indent", [2, None])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.9, 0.99])
def test_a_trainer_state_that_is_cut_off_is_read_up_to_there(
    share: float, indent: int | None, tmp_path: Path
) -> None:
    """Wherever it ends: between rows, in a name, in a number. One that is damaged in the middle is refused."""
    history = [{"step": n, "reward": 0.1 * n, "note": "a, b"} for n in range(1, 31)]
    text = json.dumps({"global_step": 30, "log_history": history}, indent=indent)
    path = tmp_path / "trainer_state.json"
    for end in range(int(share * len(text)) - 60, int(share * len(text))):
        path.write_text(text[:end])
        found = read_rows(path)
        assert [*found.rows] == history[: len(found.rows)]
        assert text[:end].count("}") == len(found.rows) > 0
        assert found.notes == (f"the file is cut off or broken after row {len(found.rows)}",)
    path.write_text(text.replace('"step": 9,', '"step" 9,'))
    with pytest.raises(InputError, match="expected JSON"):
        read_rows(path)


def test_columns_of_which_none_is_a_metric_are_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,foo\n1,2\n2,3\n")
    with pytest.raises(InputError, match=r"found no known metric \(names: step, foo\), expected"):
        read_log(path)


BROKEN: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "nothing": ("run-x.wandb", lambda data: b""),
    "another format": ("run-x.wandb", lambda data: b"\x80\x04." * 99),
    "cut in its header": ("run-x.wandb", lambda data: data[:20]),
    "no row": ("run-x.wandb", lambda data: data[:7]),
    "no events": ("events.out.tfevents.1.x", lambda data: b""),
    "events of another format": ("events.out.tfevents.1.x", lambda data: b"\x80\x04." * 99),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_logger_s_file_that_is_none_is_one_line(what: str, tmp_path: Path) -> None:
    name, change = BROKEN[what]
    path = tmp_path / name
    path.write_bytes(change(KEPT.read_bytes()))
    with pytest.raises(InputError) as raised:
        read_rows(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)
    assert "expected" in str(raised.value)


@pytest.mark.parametrize("extra", ["tensorboard", "wandb"])
def test_a_library_that_is_missing_is_named_with_its_extra(
    extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == extra]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, extra, None)
    path = tmp_path / ("events.out.tfevents.1.x" if extra == "tensorboard" else "run-x.wandb")
    shutil.copy(KEPT, path)
    with pytest.raises(InputError, match=rf"pip install 'rlvr-debug\[{extra}\]'$"):
        read_rows(path)
