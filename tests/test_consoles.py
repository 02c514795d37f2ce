"""What a run printed is read as it lies: each framework's rows from among whatever else stands there."""

import io
import json
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.diagnosis.advice import to_log
from rlvr_debug.diagnosis.checks import run_checks
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml
from rlvr_debug.logs import readers as package
from rlvr_debug.logs.log import Log, read_log
from rlvr_debug.logs.names import framework_of
from rlvr_debug.logs.printed import printed_rows, readers
from rlvr_debug.logs.readers import read_rows
from tests.in_process import called

CASES = read_yaml(Path(__file__).with_suffix(".yaml"))

SHARED = ROOT.parent / "shared" / "cases" / "logs"
NOISE = (
    "INFO 11-25 10:00:01 [loggers.py:111] Engine 000: Avg generation throughput: 12.5 tokens/s",
    '3: INFO:     127.0.0.1:41696 - "POST /update_named_param/ HTTP/1.1" 200 OK',
    "\r 40%|####      | 2/5 [00:10<00:15,  5.00s/it]",
    "/opt/module.py:12: UserWarning: the reward function is slow; Step by step",
    "{'event': 'request', 'tokens': 120}",
    "(WorkerDict pid=77) The loss of a farmer who sells 3/4 [half] is his reward.",
    "\x1b[33mreward: 0.5, step: 7\x1b[0m",
    "| prompt | reward |",
    "",
)
Row = Mapping[str, float]


def _quoted(row: Row) -> str:
    return str({name: f"{value:.4g}" for name, value in row.items()})


def _verl(step: int, row: Row) -> str:
    pairs = " - ".join(f"{name}:{value!r}" for name, value in row.items())
    return f"\x1b[36m(TaskRunner pid=1)\x1b[0m step:{step} - {pairs}"


def _skyrl(step: int, row: Row) -> str:
    pairs = ",\n ".join(f"{name!r}: '{value:.4f}'" for name, value in row.items())
    return f"2026-08-21 | INFO | tracking:log:189 - Step {step}: \n{{{pairs}}}"


def _prime(step: int, row: Row) -> str:
    reward, loss, turns = row.values()
    return (
        f"\x1b[2m10:00:01\x1b[0m SUCCESS [orchestrator] Step {step} | 1m 3s | Reward {reward:.4f} | "
        f"Trainable 8/8 (100.0%) | Loss {loss:.4f} | Turns {turns:.4f} | Error 0.0%"
    )


def _nemo(step: int, row: Row) -> str:
    loss, reward, length = row.values()
    rule = "=" * 25
    return (
        f"\n{rule} Step {step}/99 {rule}\n\n📊 Training Results:\n  • Loss: {loss:.4f}\n"
        f"  • Avg Reward: {reward:.4f}\n  • Mean Generation Length: {length:.4f}\n  • policy_training: 1.2s (3.4%)"
    )


TRL = ("loss", "reward", "rewards/a/mean", "kl")
# by form: the names of a row's numbers, the column of its step ("" for none), and how it is printed
FORMS: Mapping[str, tuple[Sequence[str], str, Callable[[int, Row], str]]] = {
    "python": (TRL, "", lambda _, row: f"0: {dict(row)}"),
    "json": (TRL, "", lambda _, row: f"[rank0]: {json.dumps(row)}"),
    "quoted": (TRL, "", lambda _, row: f" 3%|# | 7/9 [00:01<00:02, 1.0s/it]{_quoted(row)}\r"),
    "numpy": (
        *(TRL, ""),
        lambda _, row: "{" + ", ".join(f"'{n}': np.float64({v})" for n, v in row.items()) + "}",
    ),
    "pretty": (TRL, "", lambda _, row: json.dumps(row, indent=2).replace('{\n  "', '{"')),
    "ms-swift": (
        *(TRL, "step"),
        lambda n, row: str({**row, "global_step/max_steps": f"{n}/100", "percentage": "1.00%"}),
    ),
    "verl": (("critic/score/mean", "actor/pg_loss", "val-core/a b/acc/mean@1"), "step", _verl),
    "openrlhf": (
        *(("reward", "policy_loss", "kl"), "global_step"),
        lambda n, row: f"INFO 08-13 10:00:00 ppo_trainer.py:547] ✨ Global step {n}: {dict(row)}",
    ),
    "slime": (
        *(("rollout/raw_reward", "rollout/response_lengths"), "rollout/step"),
        lambda n, row: (
            f"[2026-08-21 10:00:00] train_metric_utils.py:135 - rollout {n}: {dict(row)}"
        ),
    ),
    "skyrl": (("reward/avg_raw_reward", "policy/policy_loss"), "trainer/global_step", _skyrl),
    "prime-rl": (("reward/all/mean", "loss/mean", "num_turns/all/mean"), "step", _prime),
    "own loop": (
        *(("loss", "mean_reward", "KL"), "step"),
        lambda n, row: (
            f"GRPO step {n}/500 | "
            + " | ".join(f"{name}: {value:.4f}" for name, value in row.items())
            + " | lr: 0.000003"
        ),
    ),
    "nemo-rl": (("loss", "reward", "mean_gen_tokens_per_sample"), "step", _nemo),
}


# one line of a row, or several; the steps that three of them have
FIGURES = [
    ("Step {step} | loss:0.01 rewards:{reward} grad_norm:0.5 lr:1e-05 ", range(3)),
    ("Epoch 1/3, Step {step}: avg reward = {reward}, grad_norm = 0.5, time = 12.3s", range(3)),
    ("step {step}: reward {percent}%, grad_norm 0.5, done", range(3)),
    (
        "Epoch 0: 100%|##| 5/5 [00:12<00:00, 0.7it/s, v_num=3, reward={reward}, grad_norm=0.5]",
        (1, 2, 3),
    ),
    ("training/global_step: {step}\ngrad_norm: 0.5\ncritic/score/mean: {reward}", range(3)),
    ("{{'grad_norm': 0.5,\n 'kl': nan,\n 'reward': {reward},\n 'step': {step}}}", range(3)),
    (
        "Epoch 1/5 Step {step}/935 Train step {step}/4675 done.\n┌──────┬──────┐\n"
        "│ ppo_actor/task_reward/avg │ {reward:.4e} │ ppo_actor/update/grad_norm │ 5.0000e-01 │\n└──────┴──────┘",
        range(3),
    ),
    (
        "[INFO]     Step {step}\n┃ Metric ┃ Value ┃\n│ env/all/reward/total │ {reward:.6f} │\n│ grad_norm │ 0.500000 │",
        range(3),
    ),
]


@st.composite
def runs(draw: st.DrawFn, names: Sequence[str]) -> list[tuple[int, dict[str, float]]]:
    size = draw(st.integers(1, 6))
    numbers = st.integers(-9999, 9999).map(lambda n: n / 1000)
    steps = sorted(draw(st.sets(st.integers(0, 500), min_size=size, max_size=size)))
    return [(step, {name: draw(numbers) for name in names}) for step in steps]


def rows_of(text: str) -> list[dict[str, Any]]:
    return [dict(row) for row in printed_rows(Path("x"), io.BytesIO(text.encode())).rows]


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_printed_rows_come_back_the_same_from_among_noise(form: str, data: st.DataObject) -> None:
    names, column, show = FORMS[form]
    run = data.draw(runs(names))
    noise = st.lists(st.sampled_from(NOISE), max_size=4)
    lines = []
    for step, row in run:
        lines += [*data.draw(noise), show(step, row)]
    found = rows_of("\n".join([*lines, *data.draw(noise)]))
    assert [{name: row[name] for name in names} for row in found] == [row for _, row in run]
    if column:
        assert [row[column] for row in found] == [step for step, _ in run]


def _cells(cells: Sequence[object], form: str) -> str:
    if form == "html":
        return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    parts = {"markdown": " | ", "tabs": "\t", "blanks": "   "}
    return parts[form].join(map(str, cells))


@pytest.mark.parametrize("form", ["markdown", "tabs", "blanks", "html", "notebook"])
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_table_comes_back_the_same_from_within_a_text(form: str, data: st.DataObject) -> None:
    names = ("Training Loss", "reward", "rewards / a / mean", "completions / mean_length")
    run = data.draw(runs(names))
    kind = "html" if form == "notebook" else form
    lines = [_cells(["Step", *names], kind)]
    lines += [_cells(["--"] * 5, kind)] if form == "markdown" else []
    lines += [_cells([step, *row.values()], kind) for step, row in run]
    text = "\n".join(["My run, as the notebook shows it:", "", *lines, "", "Why is that?"])
    name = "log.md"
    if kind == "html":
        text = f"<table border='1'><thead></thead>{''.join(lines)}</table>"
        name = "log.html"
    if form == "notebook":
        output = {"output_type": "display_data", "data": {"text/html": [text]}}
        text = json.dumps({"cells": [{"cell_type": "code", "outputs": [output]}], "nbformat": 4})
        name = "log.ipynb"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_text(text, "utf-8")
        found = [dict(row) for row in read_rows(path).rows]
    numbers = [
        [row["Step"], *(row[n] if n in row else row[n.replace(" / ", "/")] for n in names)]
        for row in found
    ]
    assert numbers == [[step, *row.values()] for step, row in run]


# --- what lies in the shared folder


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared")
@pytest.mark.parametrize(
    ("name", "framework", "steps", "parts"),
    [
        ("trl_console.out", "trl", range(10, 401, 10), ["accuracy_reward", "format_reward"]),
        ("trl_quoted.log", "trl", range(1, 41), ["accuracy_reward"]),
        ("verl_console.log", "verl", range(1, 41), []),
        ("notebook_table.md", "trl", range(1, 41), ["check_answer", "match_format_exactly"]),
    ],
)
def test_an_input_that_could_not_be_read_has_its_forty_rows(
    name: str, framework: str, steps: range, parts: list[str]
) -> None:
    log = read_log(SHARED / name)
    assert log.steps.index.tolist() == list(steps)
    assert log.series("reward").size == 40
    assert list(log.parts) == parts
    # notebooks have TRL's names before 0.16, which forks of its trainer kept
    assert framework_of(log.sources) == framework
    assert log.series("heldout").size == (4 if framework == "verl" else 0)
    assert not [note for note in log.notes if "left out" in note]


# --- one run of several, one rank of several


def log_of(text: str, folder: Path, name: str = "run.log") -> Log:
    path = folder / name
    path.write_text(text, "utf-8")
    return read_log(path)


def trl(epochs: Sequence[float], reward: float = 0.5) -> list[str]:
    return [str({"loss": 0.1, "reward": reward, "epoch": epoch}) for epoch in epochs]


def test_rows_have_the_steps_of_the_progress_bar_before_them(tmp_path: Path) -> None:
    lines = []
    for step, row in zip((5, 10, 15), trl([0.1, 0.2, 0.3]), strict=True):
        lines += [f"\r  1%|   | {step}/200 [00:10<00:15,  5.00s/it]", "INFO: served", row]
    assert log_of("\n".join(lines), tmp_path).steps.index.tolist() == [5, 10, 15]
    # a bar that is drawn after its row: no row is logged before step 1
    late = [
        f"\r 0%| | {n}/200 [00:10<00:15,  5.00s/it]\n{row}" for n, row in enumerate(trl([0.1, 0.2]))
    ]
    assert log_of("\n".join(late), tmp_path).steps.index.tolist() == [1, 2]
    # of another bar between them nothing is made
    lines.insert(-1, "\rLoading: 100%|####| 2/2 [00:01<00:00, 1.0it/s]")
    assert log_of("\n".join(lines), tmp_path).steps.index.tolist() == [1, 2, 3]


def test_an_evaluation_belongs_to_its_step_and_a_summary_to_none(tmp_path: Path) -> None:
    one, two = trl([0.1, 0.2])
    evaluated = "{'eval_loss': 0.2, 'eval_reward': 0.75, 'eval_runtime': 3.0, 'epoch': 0.1}"
    summary = "{'train_runtime': 60.0, 'train_loss': 0.1, 'epoch': 0.2}"
    log = log_of("\n".join([one, evaluated, two, summary]), tmp_path)
    assert len(log.steps) == 2
    assert log.series("heldout").tolist() == [0.75]
    assert log.steps["heldout"].first_valid_index() == 1
    assert log.series("run_seconds").tolist() == [60]


def test_of_several_runs_the_last_is_read_and_the_others_are_said(tmp_path: Path) -> None:
    lines = [*trl([0.1, 0.2, 0.3]), *trl([0.1, 0.2], reward=0.9)]
    log = log_of("\n".join(lines), tmp_path)
    assert log.series("reward").tolist() == [0.9, 0.9]
    assert "2 runs are in this file (rows: 3, 2): the last one is read" in log.notes


def test_a_run_that_went_on_from_a_checkpoint_has_each_step_once(tmp_path: Path) -> None:
    lines = [*trl([0.1, 0.2, 0.3, 0.4]), *trl([0.3, 0.4, 0.5], reward=0.9)]
    log = log_of("\n".join(lines), tmp_path)
    assert log.series("reward").tolist() == [0.5, 0.5, 0.9, 0.9, 0.9]
    assert any("went back" in note for note in log.notes)


def test_of_several_ranks_the_first_is_read_and_the_others_are_said(tmp_path: Path) -> None:
    pairs = zip(trl([0.1, 0.2], 0.9), trl([0.1, 0.2], 0.2), strict=True)
    lines = [
        f"[rank{rank}]: {row}" for pair in pairs for rank, row in zip((8, 0), pair, strict=True)
    ]
    log = log_of("\n".join(lines), tmp_path)
    assert log.series("reward").tolist() == [0.2, 0.2]
    assert "rows of ranks 8 are left out: those of rank 0 are read" in log.notes
    alone = log_of("\n".join(line for line in lines if "rank8" in line), tmp_path)
    assert any("output of rank 8" in note for note in alone.notes)
    by_name = log_of("\n".join(trl([0.1, 0.2])), tmp_path, "train_rank3.log")
    assert any("output of rank 3" in note for note in by_name.notes)


def test_of_a_folder_of_ranks_the_first_one_s_output_is_read(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        text = "\n".join(trl([0.1, 0.2])) if rank == 0 else "nothing"
        (tmp_path / f"rank{rank}.log").write_text(text, "utf-8")
    assert read_log(tmp_path).series("reward").size == 2
    with pytest.raises(InputError, match="this is rank 2's output"):
        read_log(tmp_path / "rank2.log")


def test_a_row_that_is_cut_off_is_left_out_and_said(tmp_path: Path) -> None:
    lines = [*trl([0.1, 0.2]), "{'loss': 0.1, 'reward': 0.7, 'ep"]
    log = log_of("\n".join(lines), tmp_path)
    assert log.series("reward").tolist() == [0.5, 0.5]
    assert "rows that are cut off were left out: 1" in log.notes
    middle = log_of("\n".join([lines[2], *lines[:2]]), tmp_path)
    assert middle.series("reward").tolist() == [0.5, 0.5]
    assert "rows that are cut off were left out: 1" in middle.notes


def test_lines_that_a_terminal_wrapped_are_joined(tmp_path: Path) -> None:
    text = "(TaskRunner pid=7) step:3 - critic/score/mean:0.25 - response_length/me\nan:330.4 - actor/entropy:0.4\ndone"
    log = log_of(text, tmp_path)
    assert log.series("length").tolist() == [330.4]
    assert log.series("entropy").tolist() == [0.4]


def test_a_rate_that_was_rounded_to_nothing_is_not_zero(tmp_path: Path) -> None:
    shown = "actor/entropy:0.5 - actor/lr:0.000 - critic/score/mean:0.000"
    lines = [f"step:{n} - {shown}" for n in range(1, 10)]
    log = log_of("\n".join(lines), tmp_path)
    assert log.series("learning_rate").size == 0
    assert log.series("reward").tolist() == [0] * 9
    assert "actor/lr is printed as 0.000: read the logger's own file for more digits" in log.notes
    findings = run_checks(log)
    assert "actor/lr" not in to_log(findings, log)
    missing = {each.check.name: each.missing for each in findings}
    assert missing["learning-rate-zero"] == ("actor/lr with more decimals",)


def test_late_evaluations_and_both_of_prime_rl_s_files_are_one_run(tmp_path: Path) -> None:
    steps = [f"10:00:0{n} SUCCESS Step {n} | 2.00s | Reward 0.{n} | Turns 1.0" for n in (1, 2, 3)]
    late = "10:00:09 SUCCESS Evaluated gsm8k (Step 1) | Policy v1 | 3.0s | Reward 0.7 | Turns 1.0"
    trained = [f"10:00:0{n} SUCCESS Step {n} | 900ms | Loss 0.1 | LR 1.00e-06" for n in (1, 2, 3)]
    log = log_of("\n".join([*steps, late, *trained]), tmp_path)
    assert log.steps.index.tolist() == [1, 2, 3]
    assert log.series("reward").tolist() == [0.1, 0.2, 0.3]
    assert log.series("heldout").tolist() == [0.7]
    assert log.series("learning_rate").tolist() == [1e-6] * 3


def test_an_optimizer_s_steps_of_slime_are_of_their_rollout(tmp_path: Path) -> None:
    lines = []
    for rollout in (0, 1):
        lines.append(
            f"perf {rollout}: {{'rollout/response_len/mean': 9.0, 'perf/rollout_time': 2.0}}"
        )
        lines.append(f"rollout {rollout}: {{'rollout/raw_reward': 0.{rollout}}}")
        for step in (0, 1):
            at = 2 * rollout + step
            lines.append(
                f"step {at}: {{'train/pg_loss': {at}.5, 'train/grad_norm': 1.0, 'train/step': {at}}}"
            )
    log = log_of("\n".join(lines), tmp_path)
    assert log.steps.index.tolist() == [0, 1]
    assert log.series("loss").tolist() == [1.5, 3.5]


def test_where_openrlhf_logs_no_step_its_bars_have_the_rows(tmp_path: Path) -> None:
    bars = [
        f"\rTrain epoch [1/1]:  50%|## | {n}/2 [00:12<00:12, 3.1s/it, act_loss=0.01, reward=0.{5 + n}, gen_len=120, kl=0.1, act_lr=5e-7]"
        for n in (1, 2)
    ]
    log = log_of("".join(bars) + "\n" + "".join(bars), tmp_path)
    assert log.series("reward").tolist() == [0.7, 0.7]
    assert log.sources["learning_rate"] == "actor_lr"


@pytest.mark.parametrize(("form", "steps"), FIGURES)
def test_figures_by_their_names_are_rows_whatever_parts_them(
    form: str, steps: Sequence[int], tmp_path: Path
) -> None:
    rewards = [0.25, 0.5, 0.375]
    lines = [
        form.format(step=n, reward=reward, percent=100 * reward) for n, reward in enumerate(rewards)
    ]
    log = log_of("Model: 7B\n" + "\nINFO: served 200\n".join(lines), tmp_path)
    assert log.kind == "figures by their names"
    assert log.series("reward").tolist() == rewards
    assert log.series("grad_norm").tolist() == [0.5] * 3
    assert log.steps.index.tolist() == list(steps)


@pytest.mark.parametrize(
    "text",
    [
        "lr: 1e-6\nclip_ratio: 0.2",
        "step 7\nkl 3 of 4 loss",
        "The reward 0 is that of a guess.",
        pytest.param("reward" + " " * 250_000 + "x", id="blanks"),
        "| step | 10 | 20 |\n| critic/score/mean | -0.4 | 0.3 |\n| response_length/clip_ratio | 0.2 | 0.1 |",
        *NOISE[:2],
    ],
)
def test_a_setting_or_a_lone_figure_makes_no_row(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found no row of metrics"):
        log_of(text, tmp_path)


def test_figures_beside_a_framework_s_own_rows_are_not_read(tmp_path: Path) -> None:
    lines = [f"{row}\nreward: 7, grad_norm: 7" for row in trl([0.1, 0.2])]
    log = log_of("\n".join([*lines, "reward: 7\nreward: 7"]), tmp_path)
    assert log.series("reward").tolist() == [0.5, 0.5]


@pytest.mark.parametrize("key", ["log", "textPayload", "message"])
def test_lines_that_a_cluster_keeps_as_json_are_read(key: str, tmp_path: Path) -> None:
    kept = [{key: f"{row}\n", "time": "2026-01-01T00:00:00Z"} for row in trl([0.1, 0.2, 0.3])]
    for name, text in (("a.jsonl", "\n".join(map(json.dumps, kept))), ("a.json", json.dumps(kept))):
        assert log_of(text, tmp_path, name).series("reward").tolist() == [0.5] * 3
    # metrics beside a message are the row
    text = json.dumps({"message": "a step", "reward": 0.75}) + '\n{"reward": 0.25}'
    assert log_of(text, tmp_path, "b.jsonl").series("reward").tolist() == [0.75, 0.25]


def test_validation_of_nemo_rl_is_of_its_step(tmp_path: Path) -> None:
    text = (
        _nemo(1, {"loss": 0.1, "reward": 0.5, "length": 9})
        + "\n📊 Validation Results:\n    • Accuracy: 0.25\n"
    )
    log = log_of(text + _nemo(2, {"loss": 0.1, "reward": 0.6, "length": 9}), tmp_path)
    assert log.steps["heldout"].tolist()[0] == 0.25
    assert log.series("reward").tolist() == [0.5, 0.6]


# --- settings


@pytest.mark.parametrize(
    ("text", "expected"),
    CASES["settings that a run printed are the log s"],
    ids=["config", "one line", "verl", "Hydra", "options", "Megatron"],
)
def test_settings_that_a_run_printed_are_the_log_s(
    text: str, expected: Mapping[str, Any], tmp_path: Path
) -> None:
    log = log_of("\n".join([text, *trl([0.1, 0.2])]), tmp_path)
    assert expected.items() <= dict(log.settings).items()
    assert log.series("reward").size == 2


def test_what_installs_a_package_sets_nothing(tmp_path: Path) -> None:
    lines = ["+ python -m pip install --upgrade trl", *trl([0.1])]
    assert log_of("\n".join(lines), tmp_path).settings == {}


# --- the command


def test_a_pasted_log_is_diagnosed(monkeypatch: pytest.MonkeyPatch) -> None:
    def given_in(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    given_in("\n".join(trl([n / 10 for n in range(9)])).encode())
    done = called(main, "rlvr-debug", "diagnose", "-")
    assert (done.returncode, done.stderr) == (0, "")
    assert "standard input" in done.stdout
    given_in(b"step:3 - nothing\n")
    done = called(main, "rlvr-debug", "diagnose", "-")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: standard input: found no row of metrics (tried JSON, CSV, "
    )
    assert "line 1 is nearest to verl's console: 'step:3 - nothing'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_run_of_an_export_of_several_is_chosen_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text("Step,a - reward,b - reward\n1,0.1,0.2\n2,0.3,0.4\n", encoding="utf-8")
    assert read_log(path, "b").series("reward").tolist() == [0.2, 0.4]
    with pytest.raises(InputError, match=r"found no run 'c', expected one of a, b"):
        read_log(path, "c")
    other = tmp_path / "one.jsonl"
    other.write_text('{"step": 1, "reward": 0.5}', encoding="utf-8")
    with pytest.raises(
        InputError, match=r"--run a: .* is no export of several runs, expected one as CSV"
    ):
        read_log(other, "a")
    done = called(main, "rlvr-debug", "diagnose", *2 * [str(path)], "--run", "a", "--run", "b")
    assert done.returncode == 0


def test_a_program_is_no_log_and_a_log_is_not_run(tmp_path: Path) -> None:
    script, log = tmp_path / "train.py", tmp_path / "log.jsonl"
    for path in (script, log):
        path.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')", encoding="utf-8")
    done = called(main, "rlvr-debug", "diagnose", str(script))
    assert (done.returncode, "a Python script, which is not a log" in done.stderr) == (2, True)
    done = called(main, "rlvr-debug", "check", str(log))
    assert (done.returncode, "found a log, expected a script" in done.stderr) == (2, True)
    assert not (tmp_path / "ran").exists()


def test_a_reader_is_a_file_that_nothing_else_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (
        "from rlvr_debug.logs.console import Reader",
        "class Console(Reader):",
        "    name, marks = 'shouts', (b'REWARD',)",
        "    def read(self, line):",
        "        self.add({'reward': float(line.text.split()[-1])}, line)",
    )
    (tmp_path / "shouting.py").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    log = log_of("REWARD 0.5\nhm\nREWARD 0.7", tmp_path)
    assert (log.kind, log.series("reward").tolist()) == ("shouts", [0.5, 0.7])
    sys.modules.pop("rlvr_debug.logs.readers.shouting")
    assert len({reader.name for reader in readers()}) == len(list(readers()))


# --- broken files


def _text(rng: random.Random) -> str:
    form = rng.choice(list(FORMS))
    names, _, show = FORMS[form]
    lines = []
    for step in range(rng.randint(1, 12)):
        lines += rng.choices(NOISE, k=rng.randint(0, 3))
        lines.append(show(step, {name: rng.randint(0, 99) / 100 for name in names}))
    return "\n".join(lines)


def _broken(rng: random.Random) -> bytes:
    text = _text(rng)
    data = text.encode()
    place = rng.randrange(len(data))
    kinds: list[Callable[[], bytes]] = [
        lambda: data[:place],
        lambda: data + b"\n" + data,
        lambda: data[:place] + rng.randbytes(rng.randint(1, 200)) + data[place:],
        lambda: bytes(b if rng.random() > 0.01 else rng.randrange(256) for b in data),
        lambda: text.encode(rng.choice(["utf-16", "utf-32", "utf-8-sig", "utf-16-le", "cp037"])),
        lambda: text.encode("latin-1", "replace").replace(b"?", b"\xe9"),
        lambda: data.replace(b"\n", rng.choice([b"\r", b"\r\n", b"\n\n", b""])),
        lambda: data.replace(b"{", b"{" * rng.randint(2, 999)).replace(b":", b"::"),
        lambda: _text(rng).encode() + b"\n" + data,
        lambda: b"\n".join(line[: rng.randint(0, 200)] for line in data.split(b"\n")),
    ]
    return rng.choice(kinds)()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["log", "train.log", "log.txt"])
def test_a_broken_text_is_one_clear_line_or_rows(name: str, tmp_path: Path) -> None:
    said = []
    for seed in range(100):
        path = tmp_path / name
        path.write_bytes(_broken(random.Random(f"{name} {seed}")))
        try:
            assert read_log(path).sources
        except InputError as error:
            said.append(str(error))
    # of the others the rows were read
    assert len(said) <= 60
    assert all("\n" not in line and "expected" in line for line in said)
    assert max(map(len, said)) < 700


@pytest.mark.parametrize("end", ["\n", "\r"])
def test_rows_between_lines_that_no_memory_holds_are_read(end: str, tmp_path: Path) -> None:
    """Progress bars that are never ended, a line of binary data, rows on both sides of a block's end."""
    bars = "\r  1%|# | 1/9 [00:01<00:02, 1.0s/it, step: 7, step:7 - - {'a': " * 9000
    parts = [end.join(trl([n / 100, (n + 1) / 100])) for n in range(1, 9, 2)]
    log = log_of(f"{end}{bars}{end}".join([*parts, "x" * 300_000]), tmp_path)
    assert log.series("reward").size == 8


def test_the_line_that_is_nearest_to_a_row_is_said_by_its_number(tmp_path: Path) -> None:
    lines = ["INFO: begun", "\r 1%\r 2%", "", "{'loss_of_nothing': 1.0}"]
    with pytest.raises(InputError, match=r"; line 4 is nearest to "):
        log_of("\n".join(lines), tmp_path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_what_another_shell_wrote_is_read(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_bytes("\r\n".join(trl([0.1, 0.2])).encode(encoding))
    assert read_log(path).series("reward").size == 2
