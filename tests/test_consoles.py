"""What a run printed is read as it lies: each framework's rows from among whatever else stands there."""

import io
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.diagnosis.advice import timing_of, to_log
from rlvr_debug.diagnosis.checks import run_checks
from rlvr_debug.diagnosis.rank import diagnose_log
from rlvr_debug.diagnosis.report import diagnosis_json, diagnosis_text
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml
from rlvr_debug.logs import readers as package
from rlvr_debug.logs.log import Log, read_log
from rlvr_debug.logs.names import argument_value, framework_of
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
TRL = ("loss", "reward", "rewards/a/mean", "kl")
VERL = ("critic/score/mean", "actor/pg_loss", "val-core/a b/acc/mean@1")
PRIME = ("reward/all/mean", "loss/mean", "num_turns/all/mean")
NEMO = ("loss", "reward", "mean_gen_tokens_per_sample")
REWARDED, OWN = ("reward", "policy_loss", "kl"), ("loss", "mean_reward", "KL")
SLIME = ("rollout/raw_reward", "rollout/response_lengths")
SKYRL = ("reward/avg_raw_reward", "policy/policy_loss")
PLAIN, QUOTED = "'{}': {}", "'{}': '{}'"
# by form: the names of a row's numbers, the column of its step ("" for none), how it is printed: its step and its pairs, or
# its numbers in their order; how a pair is, and what stands between two
FORMS: Mapping[str, tuple[Sequence[str], str, str, str, str]] = {
    "python": (TRL, "", "0: {{{row}}}", PLAIN, ", "),
    "json": (TRL, "", "[rank0]: {{{row}}}", '"{}": {}', ", "),
    "quoted": (TRL, "", " 3%|# | 7/9 [00:01<00:02, 1.0s/it]{{{row}}}\r", QUOTED, ", "),
    "numpy": (TRL, "", "{{{row}}}", "'{}': np.float64({})", ", "),
    "pretty": (TRL, "", "{{{row}\n}}", '"{}": {}', ",\n  "),
    "ms-swift": (TRL, "step", "{{{row}, 'global_step/max_steps': '{n}/100', 'percentage': '1.00%'}}", PLAIN, ", "),
    "verl": (VERL, "step", "\x1b[36m(TaskRunner pid=1)\x1b[0m step:{n} - {row}", "{}:{}", " - "),
    "openrlhf": (REWARDED, "global_step", "INFO 08-13 10:00:00 ppo_trainer.py:547] ✨ Global step {n}: {{{row}}}", PLAIN, ", "),
    "slime": (SLIME, "rollout/step", "[2026-08-21 10:00:00] train_metric_utils.py:135 - rollout {n}: {{{row}}}", PLAIN, ", "),
    "skyrl": (SKYRL, "trainer/global_step", "2026-08-21 | INFO | tracking:log:189 - Step {n}: \n{{{row}}}", QUOTED, ",\n "),
    "prime-rl": (PRIME, "step", "\x1b[2m10:00:01\x1b[0m SUCCESS [orchestrator] Step {n} | 1m 3s | Reward {0:.4f} | "
                 "Trainable 8/8 (100.0%) | Loss {1:.4f} | Turns {2:.4f} | Error 0.0%", "", ""),
    "own loop": (OWN, "step", "GRPO step {n}/500 | {row} | lr: 0.000003", "{}: {}", " | "),
    "nemo-rl": (NEMO, "step", "\n===== Step {n}/99 =====\n\n📊 Training Results:\n  • Loss: {0:.4f}\n  • Avg Reward: {1:.4f}\n"
                "  • Mean Generation Length: {2:.4f}\n  • policy_training: 1.2s (3.4%)", "", ""),
}  # fmt: skip


def shown(form: str, step: int, *values: float) -> str:
    """What is printed of a row."""
    names, _, text, pair, between = FORMS[form]
    row = between.join(pair.format(*each) for each in zip(names, values, strict=True))
    return text.format(*values, n=step, row=row)


# one line of a row, or several
FIGURES = (
    "Step {step} | loss:0.01 rewards:{reward} grad_norm:0.5 lr:1e-05 ",
    "Epoch 1/3, Step {step}: avg reward = {reward}, grad_norm = 0.5, time = 12.3s",
    "step {step}: reward {percent}%, grad_norm 0.5, done",
    "Epoch 0: 100%|##| 5/5 [00:12<00:00, 0.7it/s, v_num=3, reward={reward}, grad_norm=0.5]",
    "training/global_step: {step}\ngrad_norm: 0.5\ncritic/score/mean: {reward}",
    "{{'grad_norm': 0.5,\n 'kl': nan,\n 'reward': {reward},\n 'step': {step}}}",
    "Epoch 1/5 Step {step}/935 Train step {step}/4675 done.\n┌──────┬──────┐\n"
    "│ ppo_actor/task_reward/avg │ {reward:.4e} │ ppo_actor/update/grad_norm │ 5.0000e-01 │\n└──────┴──────┘",
    "[INFO]     Step {step}\n┃ Metric ┃ Value ┃\n│ env/all/reward/total │ {reward:.6f} │\n│ grad_norm │ 0.500000 │",
)


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
    names, column, *_ = FORMS[form]
    run = data.draw(runs(names))
    noise = st.lists(st.sampled_from(NOISE), max_size=4)
    lines = []
    for step, row in run:
        lines += [*data.draw(noise), shown(form, step, *row.values())]
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
    ("name", "framework", "parts"),
    [
        ("trl_console.out", "trl", ["accuracy_reward", "format_reward"]),
        ("trl_quoted.log", "trl", ["accuracy_reward"]),
        ("verl_console.log", "verl", []),
        # notebooks have TRL's names before 0.16, which forks of its trainer kept
        ("notebook_table.md", "trl", ["check_answer", "match_format_exactly"]),
    ],
)
def test_an_input_that_could_not_be_read_has_its_forty_rows(
    name: str, framework: str, parts: list[str]
) -> None:
    log = read_log(SHARED / name)
    every = 10 if name == "trl_console.out" else 1
    assert log.steps.index.tolist() == [every * n for n in range(1, 41)]
    assert log.series("reward").size == 40
    assert (framework_of(log.sources), list(log.parts)) == (framework, parts)
    assert log.series("heldout").size == (4 if framework == "verl" else 0)
    assert not [note for note in log.notes if "left out" in note]


# --- one run of several, one rank of several


def put(folder: Path, lines: Sequence[str]) -> Path:
    path = folder / "run.log"
    path.write_text("\n".join(lines), "utf-8")
    return path


def log_of(text: str, folder: Path, name: str = "run.log") -> Log:
    path = folder / name
    path.write_text(text, "utf-8")
    return read_log(path)


def trl(epochs: Sequence[float], reward: float = 0.5) -> list[str]:
    return [str({"loss": 0.1, "reward": reward, "epoch": epoch}) for epoch in epochs]


def barred(steps: Sequence[int]) -> list[str]:
    """Rows of TRL, each after a bar that says its step."""
    bar = "\r  1%|   | {}/200 [00:10<00:15,  5.00s/it]\nINFO: served"
    return [f"{bar.format(step)}\n{trl([step])[0]}" for step in steps]


OPENRLHF = "\rTrain epoch [1/1]:  50%|## | {n}/2 [00:12<00:12, 3.1s/it, act_loss=0.01, reward=0.{n}, kl=0.1, act_lr=5e-7]"
ROLLOUT = "perf {n}: {{'rollout/response_len/mean': 9.0, 'perf/rollout_time': 2.0}}\nrollout {n}: {{'rollout/raw_reward': 0.{n}}}"
UPDATE = "step {n}: {{'train/pg_loss': {n}.5, 'train/grad_norm': 1.0, 'train/step': {n}}}"
CUT = "rows that are cut off were left out: 1"
HALF = {1: 0.5, 2: 0.5}
# by what is shown: lines, the values of quantities by their steps, and what is noted
SHOWN: Mapping[str, tuple[Sequence[str], Mapping[str, Mapping[int, float]], str]] = {
    "rows have the steps of the bars before them": (barred([5, 10, 15]), {"reward": {5: 0.5, 10: 0.5, 15: 0.5}}, ""),
    "a bar is drawn after its row: none is logged before step 1": (barred([0, 1]), {"reward": HALF}, ""),
    "of another bar between them nothing is made": (
        [*barred([5]), "\rLoading: 100%|####| 7/7 [00:01<00:00, 1.0it/s]", *trl([10])], {"reward": HALF}, "no step is logged: rows count as steps, in their order"),
    "an evaluation belongs to its step and a summary to none": (
        [trl([0.1])[0], "{'eval_loss': 0.2, 'eval_reward': 0.75, 'eval_runtime': 3.0, 'epoch': 0.1}", trl([0.2])[0],
         "{'train_runtime': 60.0, 'train_loss': 0.1, 'epoch': 0.2}"],
        {"reward": HALF, "heldout": {1: 0.75}, "run_seconds": {2: 60}}, ""),
    "of several runs the last is read": (
        [*trl([0.1, 0.2, 0.3], 0.9), *trl([0.1, 0.2])], {"reward": HALF}, "2 runs are in this file (rows: 3, 2): the last one is read, --run 1 reads the first"),
    "a run that went on from a checkpoint has each step once": (
        [*trl([0.1, 0.2, 0.3, 0.4]), *trl([0.3, 0.4, 0.5], 0.9)], {"reward": {**HALF, 3: 0.9, 4: 0.9, 5: 0.9}},
        "the run went back to an earlier step 1 times: of repeated steps the later rows are read"),
    "a last row that is cut off is left out": ([*trl([0.1, 0.2]), "{'loss': 0.1, 'reward': 0.7, 'ep"], {"reward": HALF}, CUT),
    "a first row that is cut off is left out": (["{'loss': 0.1, 'reward': 0.7, 'ep", *trl([0.1, 0.2])], {"reward": HALF}, CUT),
    "lines that a terminal wrapped are joined": (
        ["(TaskRunner pid=7) step:3 - critic/score/mean:0.25 - response_length/me", "an:330.4 - actor/entropy:0.4", "done"],
        {"length": {3: 330.4}, "entropy": {3: 0.4}}, ""),
    "late evaluations and both of prime-rl's files are one run": (
        [*(f"10:00:0{n} SUCCESS Step {n} | 2.00s | Reward 0.{n} | Turns 1.0" for n in (1, 2)),
         "10:00:09 SUCCESS Evaluated gsm8k (Step 1) | Policy v1 | 3.0s | Reward 0.7 | Turns 1.0",
         *(f"10:00:0{n} SUCCESS Step {n} | 900ms | Loss 0.1 | LR 1.00e-06" for n in (1, 2))],
        {"reward": {1: 0.1, 2: 0.2}, "heldout": {1: 0.7}, "learning_rate": {1: 1e-6, 2: 1e-6}}, ""),
    "an optimizer's steps of slime are of their rollout": (
        [line.format(n=n) for r in (0, 1) for line, n in ((ROLLOUT, r), (UPDATE, 2 * r), (UPDATE, 2 * r + 1))],
        {"reward": {0: 0, 1: 0.1}, "loss": {0: 1.5, 1: 3.5}}, ""),
    "where OpenRLHF logs no step its bars have the rows": (
        2 * ["".join(OPENRLHF.format(n=n) for n in (1, 2))], {"reward": {1: 0.2, 2: 0.2}, "learning_rate": {1: 5e-7, 2: 5e-7}}, ""),
    "validation of NeMo RL is of its step": (
        [shown("nemo-rl", 1, 0.1, 0.5, 9), "\n📊 Validation Results:\n    • Accuracy: 0.25", shown("nemo-rl", 2, 0.1, 0.5, 9)],
        {"reward": HALF, "heldout": {1: 0.25}}, ""),
    "figures beside a framework's own rows are not read": (
        [*(f"{row}\nreward: 7, grad_norm: 7" for row in trl([0.1, 0.2])), "reward: 7", "reward: 7"], {"reward": HALF}, ""),
}  # fmt: skip


@pytest.mark.parametrize("what", SHOWN)
def test_a_row_is_of_its_step_and_run_whatever_stands_beside_it(what: str, tmp_path: Path) -> None:
    lines, values, note = SHOWN[what]
    log = log_of("\n".join(lines), tmp_path)
    assert {name: log.steps[name].dropna().to_dict() for name in values} == values
    assert note in (*log.notes, "")


def test_any_run_of_a_console_is_read_by_its_number_and_two_are_compared(tmp_path: Path) -> None:
    path = put(tmp_path, [*trl([0.1, 0.2, 0.3], 0.9), *trl([0.1, 0.2])])
    first = read_log(path, "1")
    assert first.series("reward").tolist() == [0.9] * 3
    assert "2 runs are in this file (rows: 3, 2): run 1 is read" in first.notes
    with pytest.raises(InputError, match=r"--run 3: .*run\.log has 2, expected one's number"):
        read_log(path, "3")
    done = called(main, "rlvr-debug", "diagnose", str(path), "--run", "1", "--run", "2")
    assert "run.log --run 2 (2 rows" in " ".join(done.stdout.split())
    done = called(main, "rlvr-debug", "diagnose", str(path), *(3 * ["--run", "1"]))
    assert (done.returncode, done.stderr[:27]) == (2, "error: --run: found 3 runs,")


# --- how a run ends


BAR = "\r  1%|   | {}/200 [00:10<00:15,  {}]"
FAILED = ("Traceback (most recent call last):", '  File "train.py", line 1, in <module>', "torch.OutOfMemoryError: CUDA out of memory.")  # fmt: skip
ENDS = "The log ends in an error: torch.OutOfMemoryError: CUDA out of memory."
LAUNCHER = (FAILED[0], "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (FAILED, ENDS),
        ([f"[rank1]: {line}" for line in FAILED], ENDS),
        ([*FAILED, *LAUNCHER, BAR.format(7, "5.0s/it")], ENDS),
        # what was caught, or was long ago
        ([*FAILED, *barred([15])], "The log ends at step 15 of 200."),
        ([*FAILED, *101 * ["served"]], "The log ends at step 10 of 200."),
        ([BAR.format(12, "5.0s/it")], "The log ends at step 12 of 200."),
        ([BAR.format(200, "5.0s/it")], ""),
    ],
    ids=["error", "of a rank", "of a launcher too", "caught", "long ago", "bar", "whole"],
)
def test_an_error_or_a_step_before_the_last_ends_a_log(
    after: Sequence[str], said: str, tmp_path: Path
) -> None:
    log = read_log(put(tmp_path, [*barred([5, 10]), *after]))
    assert log.ends == said
    assert ((said or "The log ends") in diagnosis_text(diagnose_log(log))) == bool(said)


def test_a_run_that_failed_before_its_first_row_is_told_its_error(tmp_path: Path) -> None:
    """It was told to set logging_steps."""
    with pytest.raises(InputError, match=f"found no row of metrics. {ENDS}$"):
        read_log(put(tmp_path, FAILED))


def test_steps_take_what_their_progress_bar_says_where_nothing_else_does(tmp_path: Path) -> None:
    bars = [(1, "30.0s/it"), (2, "20.0s/it"), (2, "10.0s/it"), (3, "0.10it/s"), (4, "40.0s/it")]
    rows = [f"{BAR.format(*bar)}{trl([bar[0]])[0]}" for bar in bars[::2]]
    shards = "\rLoading checkpoint shards: 100%|#| 2/2 [00:01<00:00,  1.31it/s]"
    lines = [shards, rows[0], BAR.format(*bars[1]), rows[1], BAR.format(*bars[3]), rows[2]]
    timing = timing_of(read_log(put(tmp_path, lines)), 1)
    assert (timing.seconds, timing.source) == (20, "its progress bar")  # of 30, 10, 10, 40
    lines = [line.replace("'loss'", "'step_time': 7.0, 'loss'") for line in lines]
    assert timing_of(read_log(put(tmp_path, lines)), 1).seconds == 7


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
    for rank, lines in ((10, ["nothing"]), (2, ["nothing"]), (0, trl([0.1, 0.2]))):
        (tmp_path / f"rank{rank}.log").write_text("\n".join(lines), "utf-8")
    assert read_log(tmp_path).series("reward").size == 2
    with pytest.raises(InputError, match="this is rank 2's output"):
        read_log(tmp_path / "rank2.log")


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


@pytest.mark.parametrize("form", FIGURES)
def test_figures_by_their_names_are_rows_whatever_parts_them(form: str, tmp_path: Path) -> None:
    rewards = {n: form.format(step=n, reward=n / 8, percent=12.5 * n) for n in (3, 4, 6)}
    log = log_of("Model: 7B\n" + "\nINFO: served 200\n".join(rewards.values()), tmp_path)
    assert log.kind == "figures by their names"
    assert log.series("reward").tolist() == [n / 8 for n in rewards]
    assert log.series("grad_norm").tolist() == [0.5] * 3
    assert log.steps.index.tolist() == ([*rewards] if "{step}" in form else [1, 2, 3])


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


@pytest.mark.parametrize("key", ["log", "textPayload", "message"])
def test_lines_that_a_cluster_keeps_as_json_are_read(key: str, tmp_path: Path) -> None:
    kept = [{key: f"{row}\n", "time": "2026-01-01T00:00:00Z"} for row in trl([0.1, 0.2, 0.3])]
    for name, text in (("a.jsonl", "\n".join(map(json.dumps, kept))), ("a.json", json.dumps(kept))):
        assert log_of(text, tmp_path, name).series("reward").tolist() == [0.5] * 3
    # metrics beside a message are the row
    text = json.dumps({"message": "a step", "reward": 0.75}) + '\n{"reward": 0.25}'
    assert log_of(text, tmp_path, "b.jsonl").series("reward").tolist() == [0.75, 0.25]


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


@pytest.mark.parametrize(
    ("line", "is_launch"),
    [
        ("+ exec ./grpo --beta 0.04 --learning-rate=1e-6", True),
        ("run sh: `/opt/rlhf.py --beta 0.04 --learning_rate 1e-6`", True),
        ("$ bin/ppo actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.kl_loss_coef=.04", True),
        ("usage: grpo --beta BETA --learning_rate LR", False),
        ("error: --beta 0.04 is set twice: see --help 0", False),
        ("step 3 --  learning_rate=1e-6 beta=0.04", False),
        ("---- learning_rate 1e-6 --- beta 0.04 ----", False),
    ],
)  # fmt: skip
def test_two_known_settings_make_a_launch_of_any_program_and_other_lines_none(
    line: str, is_launch: bool, tmp_path: Path
) -> None:
    settings = log_of("\n".join([line, *trl([0.1])]), tmp_path).settings
    known = [argument_value(settings, name) for name in ("beta", "learning_rate")]
    assert known == ([0.04, 1e-6] if is_launch else [None, None])


def test_settings_that_were_read_are_said(tmp_path: Path) -> None:
    """Nothing showed that a launch command was read."""
    found = diagnose_log(log_of("\n".join(["swift rlhf --beta 0.001", *trl([0.1, 0.2])]), tmp_path))
    assert "Settings that were read: beta 0.001." in diagnosis_text(found, verbose=True)
    assert diagnosis_json(found)["settings"] == {"beta": 0.001}


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
    given_in(b"INFO: begun\n\r 1%\r 2%\n\nstep:3 - nothing\n")
    done = called(main, "rlvr-debug", "diagnose", "-")
    assert done.returncode == 2
    assert done.stderr.startswith("error: standard input: found no row of metrics (tried JSON, ")
    assert "line 4 is nearest to verl's console: 'step:3 - nothing'" in done.stderr
    assert done.stderr.count("\n") == 1


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


# --- other files


@pytest.mark.parametrize("end", ["\n", "\r"])
def test_rows_between_lines_that_no_memory_holds_are_read(end: str, tmp_path: Path) -> None:
    """Progress bars that are never ended, a line of binary data, rows on both sides of a block's end."""
    bars = "\r  1%|# | 1/9 [00:01<00:02, 1.0s/it, step: 7, step:7 - - {'a': " * 4000
    parts = [end.join(trl([n / 100, (n + 1) / 100])) for n in range(1, 9, 2)]
    log = log_of(f"{end}{bars}{end}".join([*parts, "x" * 300_000]), tmp_path)
    assert log.series("reward").size == 8


def test_a_notebook_without_outputs_is_said_to_have_none(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "source": ["trainer.train()"], "outputs": []}
    with pytest.raises(InputError, match="its outputs are cleared, expected"):
        log_of(json.dumps({"cells": [cell], "nbformat": 4}), tmp_path, "run.ipynb")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_what_another_shell_wrote_is_read(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_bytes("\r\n".join(trl([0.1, 0.2])).encode(encoding))
    assert read_log(path).series("reward").size == 2


def test_a_reply_with_a_nul_among_the_rows_makes_no_binary_file_of_a_console(
    tmp_path: Path,
) -> None:
    said = "a sample of the policy: \0 \x10 coins " + "x" * 2000
    log = log_of("\n".join([*trl([0.1, 0.2]), said, *trl([0.3, 0.4])[1:]]), tmp_path)
    assert log.series("reward").size >= 2
    with pytest.raises(InputError, match="binary data"):
        log_of("\0".join(trl([0.1, 0.2])) + "\0" * 50, tmp_path)
