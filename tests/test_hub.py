import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_debug.checkout import ROOT
from rlvr_debug.data.hub import Selection, hub_rows, parse_selections
from rlvr_debug.data.prepare import prepare, read_splits, rooted
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_jsonl, read_yaml
from rlvr_debug.study.params import load_params
from rlvr_debug.study.resolved import own_rows
from tests.shared import ran
from tests.study_file import changed, overlaid, refused, study_file

PARAMS = load_params(ROOT / "params.yaml")
BAD_SELECTIONS = read_yaml(Path(__file__).with_name("bad_rows.yaml"))["selections"]
KEY = "data.gsm8k.datasets"
ROWS = [{"question": f"{n}+1?", "answer": f"#### {n + 1}"} for n in range(20)]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The real library, with a cache of its own."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return datasets


@pytest.fixture
def folder(library: Any, tmp_path: Path) -> Path:
    """A dataset with the splits train, of `ROWS`, and test, of one bad row after a good one."""
    path = tmp_path / "dataset"
    path.mkdir()
    bad = [ROWS[0], {"question": "1+1?", "answer": "two"}]
    for name, rows in (("train", ROWS), ("test", bad)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# --- the syntax


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "bdsaglam/musique-mini,answerable,train[:100]",
            [Selection("bdsaglam/musique-mini", "answerable", "train[:100]")],
        ),
        (
            " gsm8k , main , train[10%:-20%] ;\n/a folder/b.c,,test+train[-5:]",
            [
                Selection("gsm8k", "main", "train[10%:-20%]"),
                Selection("/a folder/b.c", "", "test+train[-5:]"),
            ],
        ),
        ("openai/gsm8k,test", [Selection("openai/gsm8k", "", "test")]),
        (
            "./rows,,train;../b,test",
            [Selection("./rows", "", "train"), Selection("../b", "", "test")],
        ),
    ],
)
def test_selections_read_as_users_write_them(text: str, expected: list[Selection]) -> None:
    assert list(parse_selections(text, KEY)) == expected
    assert list(parse_selections(";".join(map(str, expected)), KEY)) == expected


@pytest.mark.parametrize(
    ("text", "found"),
    BAD_SELECTIONS,
)
def test_another_syntax_is_an_error_that_names_key_what_was_found_and_expected(
    text: str, found: str
) -> None:
    with pytest.raises(InputError) as caught:
        parse_selections(text, KEY)
    assert str(caught.value).startswith(f"{KEY}: ")
    assert found in str(caught.value)
    assert "expected" in str(caught.value)


@given(st.text(alphabet="ab/.,;:[]%+-1 \n\0", max_size=30) | st.text(max_size=30))
def test_no_text_breaks_the_syntax_otherwise_than_by_an_error_of_one_line(text: str) -> None:
    found: tuple[Selection, ...] = ()
    said = ""
    try:
        found = parse_selections(text, KEY)
    except InputError as error:
        said = str(error)
    if found:
        assert len(found) == text.count(";") + 1
        assert all(selection.path and selection.split for selection in found)
    else:
        assert said.startswith(f"{KEY}: ")
        assert len(said.splitlines()) == 1


# --- rows


@pytest.mark.parametrize(
    ("environment", "cut"),
    [("musique", 50), ("gsm8k", 200)],
)
def test_hub_rows_are_those_of_the_file_whichever_way_they_are_selected(
    environment: str, cut: int, library: Any, real: Path, tmp_path: Path
) -> None:
    (tmp_path / "dataset").mkdir()
    shutil.copy(real / environment / "rows.jsonl", tmp_path / "dataset" / "train.jsonl")
    path = tmp_path / "dataset"
    settings = {"heldout": 30, "seed": 0}
    file = {"source": "jsonl", "path": str(path / "train.jsonl")}
    hub = {"source": "hub", "datasets": f"{path},,train[:{cut}]; {path},default,train[{cut}:]"}
    prepare(environment, {**settings, **file}, tmp_path / "file")
    prepare(environment, {**settings, **hub}, tmp_path / "hub")
    for split in ("train.jsonl", "heldout.jsonl"):
        assert (tmp_path / "hub" / split).read_bytes() == (tmp_path / "file" / split).read_bytes()


def test_a_folder_starts_at_the_project_s_root_and_its_files_are_watched(
    library: Any, real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "source": "hub",
        "datasets": " ./data/real/gsm8k,,train[:9]",
        "heldout": 3,
        "seed": 0,
    }
    # as from a job's folder
    monkeypatch.chdir(tmp_path)
    here = rooted(settings, Path(os.path.relpath(ROOT)))
    splits, _ = read_splits("gsm8k", here)
    told = [value["question"] for _, value in read_jsonl(real / "gsm8k/rows.jsonl")][:9]
    assert {row.question for row in [*splits.train, *splits.heldout]} == {*told}
    assert rooted({"datasets": "a/b,,train"}, ROOT)["datasets"] == "a/b,,train"
    params = load_params(ROOT / "params.yaml", ROOT / "studies" / "real.yaml")
    assert own_rows(params.data["gsm8k"], ROOT) == [
        f"data/real/gsm8k/{name}" for name in ("LICENSE", "rows.jsonl")
    ]


def test_heldout_datasets_are_kept_apart_from_datasets(folder: Path, tmp_path: Path) -> None:
    settings = {
        "source": "hub",
        "seed": 0,
        "datasets": f"{folder},,train",
        "heldout_datasets": f"{folder},,train[15:]+train[:1]",
    }
    prepare("gsm8k", settings, tmp_path / "out")
    asked = {
        name: [row["question"] for _, row in read_jsonl(tmp_path / "out" / f"{name}.jsonl")]
        for name in ("train", "heldout")
    }
    assert asked["heldout"] == [ROWS[n]["question"] for n in (15, 16, 17, 18, 19, 0)]
    assert asked["train"] == [row["question"] for row in ROWS[1:15]]


def test_the_rows_of_several_selections_come_in_order_and_each_has_its_place(folder: Path) -> None:
    found = list(hub_rows(f"{folder},,train[3:5];{folder},default,train[:10%]", KEY))
    places = [f"{folder},,train[3:5]:{n}" for n in (1, 2)]
    places += [f"{folder},default,train[:10%]:{n}" for n in (1, 2)]
    assert found == list(zip(places, (ROWS[n] for n in (3, 4, 0, 1)), strict=True))


def test_a_bad_hub_row_is_an_error_that_names_its_selection_and_number(
    folder: Path, tmp_path: Path
) -> None:
    text = f"{folder},,train[:9];{folder},,test"
    settings = {"source": "hub", "datasets": text, "heldout": 1, "seed": 0}
    with pytest.raises(InputError) as caught:
        prepare("gsm8k", settings, tmp_path / "out")
    assert str(caught.value).startswith(f"{folder},,test:2: key 'answer' has no '#### number'")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        (",,validation", "Unknown split"),
        (",main,train", "'main' not found. Available: ['default']"),
        ("/none,,train", "Couldn't find any data file"),
        (",,train[50:60]", "no data"),
    ],
)
def test_what_the_library_lacks_is_an_error_of_one_line(
    selection: str, said: str, folder: Path
) -> None:
    with pytest.raises(InputError) as caught:
        list(hub_rows(f"{folder}{selection}", KEY))
    assert str(caught.value).startswith(f"{KEY}: '{folder}{selection}' cannot be loaded")
    assert said in str(caught.value)
    assert "HF_HUB_OFFLINE=1" in str(caught.value)


def test_files_that_make_no_table_are_an_error_that_says_why(library: Any, tmp_path: Path) -> None:
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "train.jsonl").write_text('{"question": "1+1?", "answer"')
    done = run_script(f"{tmp_path}/dataset,,train", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {KEY}: '{tmp_path}/dataset,,train' cannot be loaded")
    assert "An error occurred" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_missing_library_is_an_error_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"^data\.gsm8k\.datasets: .*pip install datasets"):
        list(hub_rows("openai/gsm8k,main,train", KEY))


# --- processes


def run_script(datasets: str, out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {"source": "hub", "datasets": datasets, "heldout": 5, "seed": 0}
    study = study_file(out.parent, changed(PARAMS, data={"gsm8k": settings}))
    arguments = ["--environment", "gsm8k", "--study", str(study), "--out", str(out)]
    return ran(
        [sys.executable, "scripts/prepare_data.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "HF_HOME": str(out.parent / "home"), **environment},
    )


@pytest.mark.parametrize(
    "environment",
    [
        {"HF_HUB_OFFLINE": "1"},
        {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"},
    ],
    ids=["offline", "unreachable"],
)
def test_without_the_hub_the_script_ends_in_seconds_with_one_line_that_says_what_to_do(
    environment: dict[str, str], library: Any, tmp_path: Path
) -> None:
    start = time.monotonic()
    done = run_script("openai/gsm8k,main,train[:500]", tmp_path / "out", **environment)
    assert time.monotonic() - start < 20  # the library alone retries for longer
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {KEY}: 'openai/gsm8k,main,train[:500]' cannot be loaded")
    assert "HF_HUB_OFFLINE=1, or use source jsonl" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_script_loads_a_dataset_without_a_word(folder: Path, tmp_path: Path) -> None:
    done = run_script(f"{folder},,train", tmp_path / "out")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(list(read_jsonl(tmp_path / "out" / "heldout.jsonl"))) == 5


def test_a_study_with_source_hub_needs_datasets(tmp_path: Path) -> None:
    said = refused(tmp_path, data={"gsm8k": {"source": "hub"}})
    assert said.startswith("key 'data.gsm8k.datasets' is missing")
    names = {"datasets": "openai/gsm8k,main,train[:500]", "heldout_datasets": "openai/gsm8k,,test"}
    settings = overlaid(tmp_path, data={"gsm8k": {"source": "hub", **names}}).data_settings("gsm8k")
    assert settings["datasets"] == "openai/gsm8k,main,train[:500]"
