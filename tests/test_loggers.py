"""What loggers write themselves is read with their makers' libraries: TensorBoard's events, runs of Weights & Biases."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.logs.log import read_log
from rlvr_debug.logs.readers import read_rows

KEPT = ROOT / "tests" / "loggers" / "run-0.31.0.wandb"
ROWS = 12
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


@pytest.mark.slow
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
