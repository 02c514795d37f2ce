"""Broken and odd log files from a seeded generator: a clear line each, or a diagnosis, and never a traceback."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rlvr_debug.cli import main
from rlvr_debug.diagnosis.compare import compare
from rlvr_debug.diagnosis.rank import diagnose
from rlvr_debug.diagnosis.report import diagnosis_json, diagnosis_text
from rlvr_debug.errors import InputError
from rlvr_debug.report.diagnosis_page import comparison_html, diagnosis_html

COUNT = 200
Write = Callable[[random.Random, Path], Path]

NAMES = ("reward", "kl", "grad_norm", "learning_rate", "frac_reward_zero_std", "entropy", "loss")


def rows(rng: random.Random, count: int | None = None) -> list[dict[str, Any]]:
    kept = rng.sample(NAMES, rng.randint(2, len(NAMES)))
    size = count or rng.randint(2, 40)
    return [{"step": i, **{name: rng.random() for name in kept}} for i in range(1, size + 1)]


def jsonl(found: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in found)


def csv(found: list[dict[str, Any]], delimiter: str = ",", end: str = "\n") -> str:
    lines = [delimiter.join(found[0]), *(delimiter.join(map(str, row.values())) for row in found)]
    return end.join(lines) + end


def put(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# what is done to a file; each returns its path


def cut(rng: random.Random, to: Path) -> Path:
    text = rng.choice([jsonl(rows(rng)), csv(rows(rng)), json.dumps({"log_history": rows(rng)})])
    return put(to / "log.json", text[: rng.randrange(len(text))])


def cut_bytes_of_parquet(rng: random.Random, to: Path) -> Path:
    buffer = io.BytesIO()
    pd.DataFrame(rows(rng)).to_parquet(buffer)
    data = bytearray(buffer.getvalue())
    if rng.random() < 0.5:
        data = data[: rng.randrange(4, len(data))]
    else:
        for _ in range(rng.randint(1, 30)):
            data[rng.randrange(4, len(data))] = rng.randrange(256)
    return put(to / "log.parquet", bytes(data))


def odd_numbers(rng: random.Random, to: Path) -> Path:
    odd = [
        "nan",
        "inf",
        "-inf",
        "NaN",
        "1e999",
        "",
        " ",
        "None",
        "1,5",
        "0x10",
        "85%",
        "1_000",
        "ten",
    ]
    found = rows(rng)
    for row in found:
        for name in NAMES:
            if name in row and rng.random() < 0.4:
                row[name] = rng.choice(odd)
    return put(to / "log.jsonl", jsonl(found))


def odd_json(rng: random.Random, to: Path) -> Path:
    odd = [
        None,
        True,
        [1, 2],
        {"a": {"b": 1}},
        "x",
        10**400,
        -(10**30),
        {},
        [],
        float("nan"),
        float("inf"),
    ]
    found = rows(rng)
    for row in found:
        row[rng.choice([*NAMES, "step"])] = rng.choice(odd)
    return put(to / "log.jsonl", jsonl(found))


def other_json(rng: random.Random, to: Path) -> Path:
    value: Any = rng.choice(
        [
            3,
            "text",
            None,
            [],
            {},
            [1, 2],
            [[1], [2]],
            {"log_history": []},
            {"log_history": {"a": 1}},
            {"log_history": [1]},
            {"a": "b"},
            {"reward": [1, 2, 3], "kl": [1]},
            {"step": [1, 2], "reward": [0.1, 0.2]},
            {"reward": 0.3},
            [{"step": 1, "reward": 0.5}, None],
        ]
    )
    return put(to / rng.choice(["trainer_state.json", "a.json", "a.jsonl"]), json.dumps(value))


def nested_deep(rng: random.Random, to: Path) -> Path:
    depth = rng.choice([5, 50, 3000, 200_000])
    return put(to / "deep.json", '{"a":' * depth + "1" + "}" * depth)


def duplicate_columns(rng: random.Random, to: Path) -> Path:
    return put(to / "twice.csv", csv(rows(rng)).replace("step", "reward", 1))


def wrong_delimiter(rng: random.Random, to: Path) -> Path:
    return put(to / "log.csv", csv(rows(rng), rng.choice([";", "\t", "|", " ", "::", "~"])))


def line_ends(rng: random.Random, to: Path) -> Path:
    return put(to / "log.csv", csv(rows(rng), end=rng.choice(["\r\n", "\r", "\n\n", "\n\r"])))


def byte_order_mark(rng: random.Random, to: Path) -> Path:
    text = rng.choice([jsonl, csv])(rows(rng))
    return put(
        to / "log.csv", text.encode(rng.choice(["utf-8-sig", "utf-16", "utf-16-be", "utf-32"]))
    )


def bad_utf8(rng: random.Random, to: Path) -> Path:
    data = bytearray(jsonl(rows(rng)).encode())
    data[rng.randrange(len(data))] = rng.randrange(128, 256)
    return put(to / "log.jsonl", bytes(data))


def binary(rng: random.Random, to: Path) -> Path:
    name = rng.choice(["log", "log.csv", "log.jsonl", "log.json", "log.parquet", "log.gz"])
    return put(
        to / name,
        rng.choice([b"", b"PAR1", b"\x1f\x8b", b"{"]) + rng.randbytes(rng.randint(0, 4000)),
    )


def empty(rng: random.Random, to: Path) -> Path:
    return put(
        to / rng.choice(["a.csv", "a.json", "a.parquet"]),
        rng.choice(["", "\n\n", " ", "\ufeff", "\0"]),
    )


def header_alone(rng: random.Random, to: Path) -> Path:
    return put(
        to / "a.csv",
        rng.choice(["step,reward\n", ",,,\n1,2,3,4\n", "a,b\n1\n", "1,2\n3,4\n", "reward\n1\n"]),
    )


def ragged(rng: random.Random, to: Path) -> Path:
    lines = csv(rows(rng, 9)).splitlines()
    place = rng.randrange(1, len(lines))
    lines[place] = rng.choice([lines[place] + ",7", lines[place].rsplit(",", 1)[0], '"open', ""])
    return put(to / "a.csv", "\n".join(lines))


def unknown_names(rng: random.Random, to: Path) -> Path:
    return put(to / "a.jsonl", jsonl([{f"name{rng.random()}": 1.0, "b": i} for i in range(9)]))


def strange_names(rng: random.Random, to: Path) -> Path:
    odd = [
        "",
        " ",
        "rewards//mean",
        "rewards/a/mean",
        "\u202ereward",
        "a" * 10_000,
        "x\ny",
        "step ",
        "__MIN",
    ]
    return put(to / "a.jsonl", jsonl([{**row, rng.choice(odd): 1.0} for row in rows(rng)]))


def odd_steps(rng: random.Random, to: Path) -> Path:
    steps: list[Any] = [
        0,
        -5,
        1e300,
        1e308,
        3,
        3,
        3,
        None,
        "7",
        "x",
        2.5,
        float("nan"),
        float("inf"),
    ]
    return put(to / "a.jsonl", jsonl([{**row, "step": rng.choice(steps)} for row in rows(rng)]))


def huge_numbers(rng: random.Random, to: Path) -> Path:
    values = [1e308, -1e308, 1e-320, 5e-324, 1e200, -1e200, 0.0, 1e16]
    return put(
        to / "a.jsonl",
        jsonl(
            [{k: rng.choice(values) for k in row} | {"step": i} for i, row in enumerate(rows(rng))]
        ),
    )


def zipped(rng: random.Random, to: Path) -> Path:
    data = gzip.compress(jsonl(rows(rng)).encode())
    kind = rng.randrange(4)
    if kind == 1:
        data = data[: rng.randrange(2, len(data))]
    if kind == 2:
        data = gzip.compress(data)
    if kind == 3:
        data = data[:12] + rng.randbytes(20) + data[32:]
    return put(to / "log.jsonl.gz", data)


class Trap:
    """Unpickling it leaves a file behind."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (self.path,))


def pickled(rng: random.Random, to: Path) -> Path:
    trap = pickle.dumps(Trap(str(to / "unpickled")), protocol=rng.randint(0, 5))
    kind = rng.randrange(4)
    if kind == 0:
        buffer = io.BytesIO()
        np.save(buffer, np.array([Trap(str(to / "unpickled"))], dtype=object), allow_pickle=True)
        trap = buffer.getvalue()
    if kind == 1:
        import torch

        buffer = io.BytesIO()
        torch.save({"trap": [1, 2]}, buffer)
        trap = buffer.getvalue()
    return put(
        to / rng.choice(["training_args.bin", "a.pt", "a.pkl", "a.json", "a.csv", "log"]), trap
    )


def folder(rng: random.Random, to: Path) -> Path:
    inner = to / "run"
    inner.mkdir()
    kind = rng.randrange(6)
    if kind == 1:
        put(inner / "trainer_state.json", "{}")
    if kind == 2:
        (inner / "trainer_state.json").mkdir()
    if kind == 3:
        put(inner / "a.csv", csv(rows(rng)))
        put(inner / "b.csv", csv(rows(rng)))
    if kind == 4:
        (inner / "completions").mkdir()
        put(inner / "completions" / "completions_00001.parquet", b"PAR1")
    if kind == 5:
        (inner / "metrics.jsonl").symlink_to(inner / "metrics.jsonl")
    return inner


def special(rng: random.Random, to: Path) -> Path:
    path = to / "a.jsonl"
    kind = rng.randrange(4)
    if kind == 0:
        os.mkfifo(path)
    if kind == 1:
        path.symlink_to(to / "nothing")
    if kind == 2:
        put(path, jsonl(rows(rng))).chmod(0)
    return Path("/dev/zero") if kind == 3 and Path("/dev/zero").exists() else path


def bad_path(rng: random.Random, to: Path) -> Path:
    return Path(
        rng.choice([f"{to}/a\0b", f"{to}/" + "x" * 5000, f"{to}/none.csv", "", f"{to}/\udcff"])
    )


def odd_completions(rng: random.Random, to: Path) -> Path:
    odd: list[Any] = [None, "", [], [{"role": "user", "content": "x"}], {"a": 1}, "p"]
    found = [
        {
            "step": rng.choice([1, 2, None]),
            "prompt": rng.choice(odd),
            "completion": rng.choice(odd),
            "score": rng.choice([0, 1, None, float("nan"), 1e308, "x"]),
            "part": rng.choice([0.0, 1.0]),
            "advantage": rng.choice([0.0, 1e308, -1e308, None, float("inf")]),
        }
        for _ in range(rng.randint(1, 30))
    ]
    return put(to / "completions.jsonl", jsonl(found))


KINDS: list[Write] = [
    *(cut, cut_bytes_of_parquet, odd_numbers, odd_json, other_json, nested_deep, duplicate_columns),
    *(wrong_delimiter, line_ends, byte_order_mark, bad_utf8, binary, empty, header_alone, ragged),
    *(unknown_names, strange_names, odd_steps, huge_numbers, zipped, pickled, folder, special),
    *(bad_path, odd_completions),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(COUNT))
def test_a_broken_log_is_one_clear_line_or_a_diagnosis(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    path = KINDS[seed % len(KINDS)](rng, tmp_path)
    try:
        found = diagnose(path)
    except InputError as error:
        line = str(error)
        assert "\n" not in line
        assert "expected" in line or "export" in line
        assert len(line) < 700 + len(str(path))
        assert path.name[:20] in line or "\\" in line or not path.name
    else:
        assert diagnosis_text(found)
        json.dumps(diagnosis_json(found), allow_nan=False)
        for page in (diagnosis_html(found), comparison_html(compare(found, found))):
            assert page.rstrip().endswith("</html>")
            assert not re.search(r' d="[^"]*(nan|inf)', page)
    assert not (tmp_path / "unpickled").exists()


def test_the_generator_makes_every_kind_and_both_outcomes(tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(0, COUNT, 3):
        place = tmp_path / str(seed)
        place.mkdir()
        try:
            diagnose(KINDS[seed % len(KINDS)](random.Random(seed), place))
            outcomes["diagnosis"] += 1
        except InputError:
            outcomes["line"] += 1
    assert min(outcomes["diagnosis"], outcomes["line"]) >= 10


@pytest.mark.parametrize("name", ["none.csv", "args.bin", "empty.jsonl"])
def test_the_command_ends_with_one_line_and_status_2(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name != "none.csv":
        put(tmp_path / name, b"")
    monkeypatch.setattr(sys, "argv", ["rlvr-debug", "diagnose", str(tmp_path / name)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"error: {tmp_path / name}")
    assert said.err.count("\n") == 1
