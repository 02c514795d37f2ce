"""A run's log is read whatever wrote it: a trainer, another framework, or a logger by its maker's library."""

import gc
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.errors import InputError
from rlvr_debug.logs.log import logged_as, read_log
from rlvr_debug.logs.names import KNOWN, NAMES, framework_of, resolve
from rlvr_debug.logs.readers import read_rows
from tests.in_process import called
from tests.test_diagnose import completions, healthy, log_of, rows_of


def test_every_name_is_resolved_to_its_quantity_and_no_other() -> None:
    for quantity, by_framework in NAMES.items():
        for framework, names in by_framework.items():
            assert framework in KNOWN["frameworks"]
            for name in (*names, *(f"train/{name.upper()}" for name in names)):
                found = resolve(name)
                assert found is not None
                assert found[0] == quantity, name


@pytest.mark.parametrize("framework", KNOWN["frameworks"])
def test_a_log_is_known_by_its_framework_s_names(framework: str) -> None:
    named = {q: names[framework][0] for q, names in NAMES.items() if names.get(framework)}
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


# of each, the rewards of the good run are 0, 0.125 and 0.25
TWO_RUNS = {
    "columns of a chart": "Step,good - reward,bad - reward\n0,0,7\n1,0.125,7\n2,0.25,7",
    "a column of runs": "run,_step,reward\ngood,0,0\ngood,1,0.125\nbad,1,7\ngood,2,0.25\n,9,0.5",
    "another name of it": "Run_ID,step,reward\nbad,0,7\ngood,0,0\ngood,1,0.125\ngood,2,0.25",
    "a value a row": "run,key,value,timestamp,step\ngood,reward,0,17,0\ngood,reward,0.125,17,1\n"
    "good,reward,0.25,17,2\nbad,reward,7,17,0",
}


@pytest.mark.parametrize("layout", TWO_RUNS)
def test_a_table_of_two_runs_is_read_for_the_one_that_is_named(layout: str, tmp_path: Path) -> None:
    """Rows of the other run were dropped, step by step."""
    path = tmp_path / "two.csv"
    path.write_text(TWO_RUNS[layout], encoding="utf-8")
    with pytest.raises(
        InputError, match=r"two\.csv:1: found 2 runs \('bad', 'good'\), .*, or --run NAME$"
    ):
        read_log(path)
    with pytest.raises(InputError, match="found no run 'goood', did you mean 'good'"):
        read_log(path, "goood")
    log = read_log(path, "good")
    assert log.steps["reward"].to_dict() == {0: 0, 1: 0.125, 2: 0.25}
    assert log.notes == ()
    words = ("--run", "good", "--run", "bad")
    done = called(main, "rlvr-debug", "diagnose", str(path), str(path), *words)
    assert done.returncode == 0, done.stderr
    path.with_suffix(".jsonl").write_text('{"step": 1, "reward": 0.5}', encoding="utf-8")
    with pytest.raises(InputError, match=r"--run good: .* is no file of several runs, expected"):
        read_log(path.with_suffix(".jsonl"), "good")


VALUES = "run,{},value,timestamp,step\na,reward,0.25,17,1\na,reward,0.5,17,2\na,kl,0.125,17,2"
TAG = "run-Sep01_10-22-11_node3-tag-{}.csv"
CHART = "Wall time,Step,Value\n1.5,1,0.25\n2.5,2,0.5"
NAMELESS = "a column without a name was left out"
REWARDS, RATES = {1: 0.25, 2: 0.5}, {1: 1e-6, 2: 1e-6}
# a file's name, its text, the values by step that it has, and what is noted
SHEETS: list[tuple[str, str, Mapping[str, Mapping[int, float]], tuple[str, ...]]] = [
    *(("a.csv", VALUES.format(n), {"reward": REWARDS, "kl": {2: 0.125}}, ()) for n in ("key", "tag", "metric")),
    # steps that lack a metric raised KeyError
    ("a.csv", "key;step;value\nreward;1;0,25\nreward;2;0,5\nkl;3;1,5%", {"reward": REWARDS, "kl": {3: 0.015}}, ()),
    # a chart of TensorBoard is named by its file
    *((TAG.format(tag), CHART, {"reward": REWARDS}, ()) for tag in ("train_reward", "Train_Reward")),
    (TAG.format("actor_grad_norm"), CHART, {"grad_norm": REWARDS}, ()),
    # numbers as a spreadsheet shows them
    ("a.csv", "step;reward;lr\n1;0,25;0,000001\n2;0,5;0,000001", {"reward": REWARDS, "learning_rate": RATES}, ()),
    ("a.csv", "step;reward;lr\n1,000;25.0%;1e-6\n2,000;50.0%;1e-6", {"reward": {1000: 0.25, 2000: 0.5}, "learning_rate": {1000: 1e-6, 2000: 1e-6}}, ()),
    ("a.csv", 'step,reward,lr\n1,"1,250.5",1e-6\n2,"1,500.0",nan', {"reward": {1: 1250.5, 2: 1500}, "learning_rate": {1: 1e-6}}, ()),
    ("a.csv", 'step,reward,note\n1,0.25,"a, b"\n2,0.5,50%', {"reward": REWARDS}, ()),
    ("a.csv", "step,reward,\n1,0.25,3\n2,0.5,4\n", {"reward": REWARDS}, (NAMELESS,)),
    ("a.csv", "step,reward,loss\n1,0.25,3\n2,0.5,4\n", {"reward": REWARDS, "loss": {1: 3, 2: 4}}, ()),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "values", "notes"), SHEETS)
def test_a_sheet_is_read_as_it_is_meant(
    name: str,
    text: str,
    values: Mapping[str, Mapping[int, float]],
    notes: tuple[str, ...],
    tmp_path: Path,
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    log = read_log(path)
    assert {name: log.steps[name].dropna().to_dict() for name in log.steps} == values
    assert log.notes == notes


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


def test_of_a_folder_s_many_files_all_are_counted_and_one_is_to_be_typed(tmp_path: Path) -> None:
    """Tables alone were counted, and what was printed was not."""
    for name in ("a.csv", "b.csv", "c.log", "d.txt", "e.out"):
        (tmp_path / name).write_text("step,reward\n1,0.5\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"found 5 files .*, …\), expected one: type rlvr-debug "):
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
    names = TOLD[framework]["names"]
    rows: list[dict[str, float]] = []
    for step in range(1, ROWS + 1):
        kept = [name for name in names if names[name] != "heldout" or step % 4 == 0]
        row = {name: value(step) + place for place, name in enumerate(kept)}
        [counter] = [name for name, quantity in names.items() if quantity == "step"]
        rows.append({**row, counter: step})
    path = folder / f"{framework}.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.mark.parametrize("framework", TOLD)
def test_every_figure_of_a_framework_is_read_as_what_it_is(framework: str, tmp_path: Path) -> None:
    path = written(framework, tmp_path)
    log = read_log(path)
    names: Mapping[str, str | None] = TOLD[framework]["names"]
    expected = {quantity: name for name, quantity in names.items() if quantity not in NOT_READ}
    assert dict(log.sources) == expected
    assert set(log.unknown) == {name for name, quantity in names.items() if quantity is None}
    assert framework_of(log.sources) == framework
    assert log.series("reward").size == ROWS
    if "heldout" in log.sources:
        assert log.series("heldout").size == ROWS // 4
    assert log.parts.shape[1] == [*names.values()].count("part")
    done = called(main, "rlvr-debug", "diagnose", str(path))
    assert (done.returncode, done.stderr) == (0, "")


def test_what_verl_logs_itself_is_read() -> None:
    log = read_log(PLACE / "verl.jsonl")
    assert len(log.steps) == ROWS
    assert framework_of(log.sources) == "verl"
    measured = "length length_max truncated prompt_truncated advantage_mean advantage_max seconds"
    sampled = "sampler_prob_gap sampler_pearson sampler_kl sampler_ratio_min correction_ess"
    for quantity in f"reward {measured} {sampled} correction_weight correction_masked".split():
        assert log.sources[quantity] == logged_as(quantity, "verl")
        assert log.series(quantity).size == ROWS
    assert log.sources["reward"] == "critic/score/mean"


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
        assert log.series("reward").tolist() == [0.5] * ROWS
        assert log.series("kl") == pytest.approx([0.01 * n for n in range(1, ROWS + 1)])
        assert list(log.steps.index) == list(range(1, ROWS + 1))


def test_events_of_several_runs_are_not_mixed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        events(tmp_path / "runs" / name)
    with pytest.raises(InputError, match=r"found the logs of 2 runs \(runs/one, runs/two\)"):
        read_log(tmp_path)


def test_a_run_that_went_on_in_another_file_of_events_is_one(tmp_path: Path) -> None:
    for number in (1, 2):
        events(tmp_path / "later").rename(tmp_path / f"events.out.tfevents.{number}.host")
    assert read_log(tmp_path).series("kl").size == ROWS


@pytest.mark.heavy
def test_a_run_that_wandb_keeps_offline_is_read_as_it_lies_there(tmp_path: Path) -> None:
    given = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    subprocess.run([sys.executable, "-c", WANDB], cwd=tmp_path, env=given, check=True, timeout=120)
    for place in (tmp_path, tmp_path / "wandb"):
        log = read_log(place)
        assert log.kind == "a run of Weights & Biases"
        assert log.series("kl") == pytest.approx([0.01 * n for n in range(1, ROWS + 1)])


def test_a_run_of_weights_and_biases_is_read_as_it_lies_there(tmp_path: Path) -> None:
    """As wandb 0.31.0 wrote it, newer than the library that reads it, in the folders of a run that was not uploaded."""
    runs = tmp_path / "wandb"
    kept = runs / "offline-run-20261125_100000-x1" / "run-x1.wandb"
    kept.parent.mkdir(parents=True)
    shutil.copy(KEPT, kept)
    (runs / "latest-run").symlink_to(kept.parent)
    for place in (KEPT, kept, kept.parent, runs, tmp_path):
        log = read_log(place)
        assert log.kind == "a run of Weights & Biases"
        assert log.sources["step"] == "train/global_step"
        assert log.series("kl") == pytest.approx([0.01 * n for n in range(1, 16)])
        assert "nested/a" in log.unknown


def test_a_run_s_file_is_closed_once_it_is_read(tmp_path: Path) -> None:
    broken = tmp_path / "run-y.wandb"
    broken.write_bytes(KEPT.read_bytes()[:20])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ResourceWarning)
        read_rows(KEPT)
        with pytest.raises(InputError):
            read_rows(broken)
        gc.collect()
    assert [str(each.message) for each in said if each.category is ResourceWarning] == []


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


@pytest.mark.parametrize("name", ["run-x.wandb", "events.out.tfevents.1.x"])
def test_a_logger_s_file_that_is_none_is_one_line(name: str, tmp_path: Path) -> None:
    """Nothing, another format, one that is cut in its header, one without a row."""
    path, kept = tmp_path / name, KEPT.read_bytes()
    for data in (b"", b"\x80\x04." * 99, kept[:20], kept[:7]):
        path.write_bytes(data)
        with pytest.raises(InputError) as raised:
            read_rows(path)
        assert re.fullmatch(f"{re.escape(str(path))}: .*expected.*", str(raised.value))


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
