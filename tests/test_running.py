"""What running a study checks first and says last, without a study."""

import json
import os
from pathlib import Path

import pytest

from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json
from rlvr_debug.replay.answer import first_answer
from rlvr_debug.replay.finding import AGREES, DEVIATES, NOT_SEEN
from rlvr_debug.study import running
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params
from rlvr_debug.study.plan import plan
from tests.study_file import changed

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("asks_hub", [False, True])
def test_a_file_of_rows_that_is_missing_ends_a_study_before_it_begins(
    asks_hub: bool, tmp_path: Path
) -> None:
    overlay = tmp_path / "mine.yaml"
    overlay.write_text("study: mine\ndata: {musique: {source: jsonl, path: none.jsonl}}\n")
    with pytest.raises(InputError, match=r"none\.jsonl: No such file"):
        plan(overlay)
    params = told("jsonl", path="none.jsonl")
    with pytest.raises(InputError, match=r"none\.jsonl: No such file"):
        running.check_rows(params, ROOT, asks_hub)


def test_a_dry_run_asks_no_hub_and_synthetic_rows_are_not_made_to_be_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []
    monkeypatch.setattr(running, "read_splits", lambda name, settings: read.append(name))
    running.check_rows(told("hub", datasets="some/rows"), ROOT, asks_hub=False)
    running.check_rows(load_params(ROOT / "params.yaml"), ROOT, asks_hub=True)
    assert read == []
    running.check_rows(told("hub", datasets="some/rows"), ROOT, asks_hub=True)
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


# --- the first answer


def follow(tmp_path: Path, events: list[dict[str, object]], begin: float) -> list[tuple[int, Path]]:
    """After how many events the case's check is told of, and by which file."""
    told: list[tuple[int, Path]] = []
    done = 0

    def steps(*_: int) -> None:
        nonlocal done
        done += 1

    ours, theirs = os.pipe()
    with open(theirs, "w", encoding="utf-8") as pipe:
        pipe.writelines(f"{json.dumps(event)}\n" for event in events)
    file = tmp_path / "check.json"
    check = running._Check(file, begin, lambda path: told.append((done, path)))
    running._follow(ours, steps, check)
    return told


PROGRESS: list[dict[str, object]] = [{"event": "progress", "done": n, "total": 4} for n in (1, 2)]


@pytest.mark.parametrize(
    ("stats", "written", "told"),
    [
        ({"check_case": 1, "train": 2, "total": 4}, 50.0, []),  # an earlier study's
        ({"check_case": 1, "train": 2, "total": 4}, 150.0, [1]),
        ({"train": 2, "total": 3}, 50.0, [1]),  # it is not made again
        ({"train": 2, "total": 3}, None, []),
    ],
)
def test_the_check_is_told_of_once_and_only_where_it_is_of_this_study(
    tmp_path: Path, stats: dict[str, int], written: float | None, told: list[int]
) -> None:
    file = tmp_path / "check.json"
    if written:
        file.write_text("{}", encoding="utf-8")
        os.utime(file, (written, written))
    found = follow(tmp_path, [{"event": "run_info", "stats": stats}, *PROGRESS], begin=100.0)
    assert found == [(number, file) for number in told]


def test_the_first_answer_is_every_segment_that_deviates_with_its_causes() -> None:
    """Those of the names that give it; of a segment that nothing known gives, those that it speaks for."""

    def segment(name: str, status: str, *named: str, causes: tuple[str, ...] = ()) -> object:
        names = [{"name": cause, "cause": cause} for cause in named]
        return {"segment": name, "status": status, "names": names, "causes": causes}

    agreeing = segment("rewards", AGREES, causes=("reward-signal",))
    deviating = [
        segment("tokens", DEVIATES, "sequence-mismatch", "sequence-mismatch", causes=("a", "b")),
        segment("loss", DEVIATES, causes=("kl-penalty", "loss-aggregation")),
        segment("saved", DEVIATES),
    ]
    assert first_answer({"segments": [agreeing, *deviating, segment("sync", NOT_SEEN)]}) == (
        "the case differs from a healthy run in: tokens (sequence-mismatch), "
        "loss (kl-penalty or loss-aggregation), saved (nothing known); 1 of 5 segments was not seen: sync"
    )
    healthy = first_answer({"segments": [agreeing]})
    assert healthy == "the case's first steps are those of a healthy run"


def test_the_first_answer_of_the_default_study_names_both_causes() -> None:
    answer = first_answer(read_json(ROOT / "results" / "check.json"))
    assert {"(sequence-mismatch)", "(hidden-context)"} < {*answer.replace(",", "").split()}
