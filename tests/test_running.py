"""What running a study checks first and says last, without a study."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlvr_debug.errors import InputError
from rlvr_debug.study import running
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params
from tests.study_file import changed

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("asks_hub", [False, True])
def test_a_file_of_rows_that_is_missing_ends_a_study_before_it_begins(asks_hub: bool) -> None:
    params = told("jsonl", path="none.jsonl")
    with pytest.raises(InputError, match=r"none\.jsonl: No such file"):
        running._check_rows(params, ROOT, asks_hub)


def test_a_dry_run_asks_no_hub_and_synthetic_rows_are_not_made_to_be_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []
    monkeypatch.setattr(running, "read_splits", lambda name, settings: read.append(name))
    running._check_rows(told("hub", datasets="some/rows"), ROOT, asks_hub=False)
    running._check_rows(load_params(ROOT / "params.yaml"), ROOT, asks_hub=True)
    assert read == []
    running._check_rows(told("hub", datasets="some/rows"), ROOT, asks_hub=True)
    assert read == ["gsm8k"]


def told(source: str, **keys: str) -> Params:
    params = load_params(ROOT / "params.yaml")
    return changed(params, data={"gsm8k": {"source": source, **keys}})


def test_of_a_job_that_never_began_an_earlier_runs_log_is_not_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("old.log", "new.log"):
        (tmp_path / name).write_text(f"error: {name}\n", encoding="utf-8")
    os.utime(tmp_path / "old.log", (1, 1))
    assert not running._say_what_failed(tmp_path, ["old.log", "none.log"], begin=2.0)
    assert running._say_what_failed(tmp_path, ["old.log", "new.log"], begin=2.0)
    assert capsys.readouterr().err == "error: new.log\n"
