"""Broken and odd log files from a seeded generator: a clear line each, or a diagnosis, and never a traceback."""

import gzip
import io
import json
import os
import pickle
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rlvr_debug.diagnosis.compare import compare
from rlvr_debug.diagnosis.rank import diagnose
from rlvr_debug.diagnosis.report import diagnosis_json, diagnosis_text
from rlvr_debug.errors import InputError
from rlvr_debug.logs.log import read_log
from rlvr_debug.report.diagnosis_page import comparison_html, diagnosis_html
from tests.test_consoles import FORMS, NOISE, shown

COUNT = 200
Content = Callable[[random.Random], str | bytes]
Write = Callable[[random.Random, Path], Path]

NAMES = ("reward", "kl", "grad_norm", "learning_rate", "frac_reward_zero_std", "entropy", "loss")


def rows(rng: random.Random, count: int | None = None) -> list[dict[str, Any]]:
    kept = rng.sample(NAMES, rng.randint(2, len(NAMES)))
    size = count or rng.randint(2, 40)
    return [{"step": i, **{name: rng.random() for name in kept}} for i in range(1, size + 1)]


def jsonl(found: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in found)


def csv(found: list[dict[str, Any]], delimiter: str = ",") -> str:
    lines = [delimiter.join(found[0]), *(delimiter.join(map(str, row.values())) for row in found)]
    return "\n".join(lines) + "\n"


def put(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# what a file may hold: its names, and its content


def printed(rng: random.Random) -> bytes:
    form = rng.choice([*FORMS])
    lines = []
    for step in range(rng.randint(1, 12)):
        lines += rng.choices(NOISE, k=rng.randint(0, 3))
        lines.append(shown(form, step, *(rng.randint(0, 99) / 100 for _ in FORMS[form][0])))
    return "\n".join(lines).encode()


def table(rng: random.Random) -> bytes:
    found = rows(rng)
    return rng.choice([jsonl(found), csv(found), json.dumps({"log_history": found})]).encode()


def parquet(rng: random.Random) -> bytes:
    buffer = io.BytesIO()
    pd.DataFrame(rows(rng)).to_parquet(buffer)
    return buffer.getvalue()


def broken(rng: random.Random, data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    place = rng.randrange(len(data))
    kinds: list[Callable[[], bytes]] = [
        lambda: data[:place],
        lambda: data + b"\n" + data,
        lambda: data[:place] + rng.randbytes(rng.randint(1, 200)) + data[place:],
        lambda: bytes(b if rng.random() > 0.01 else rng.randrange(256) for b in data),
        lambda: text.encode(rng.choice([*ENCODINGS, "utf-16-le", "cp037"]), "replace"),
        lambda: text.encode("latin-1", "replace").replace(b"?", b"\xe9"),
        lambda: data.replace(b"\n", rng.choice([b"\r", b"\r\n", b"\n\n", b"\n\r", b""])),
        lambda: data.replace(b"{", b"{" * rng.randint(2, 999)).replace(b":", b"::"),
        lambda: rng.choice([table, printed])(rng) + b"\n" + data,
        lambda: b"\n".join(line[: rng.randint(0, 200)] for line in data.split(b"\n")),
    ]
    return rng.choice(kinds)()


def deep(rng: random.Random) -> str:
    depth = rng.choice([5, 50, 3000, 200_000])
    return '{"a":' * depth + "1" + "}" * depth


def ragged(rng: random.Random) -> str:
    lines = csv(rows(rng, 9)).splitlines()
    place = rng.randrange(1, len(lines))
    lines[place] = rng.choice([lines[place] + ",7", lines[place].rsplit(",", 1)[0], '"open', ""])
    return "\n".join(lines)


def zipped(rng: random.Random) -> bytes:
    data = gzip.compress(table(rng))
    return rng.choice([data, gzip.compress(data), broken(rng, data), data[:-4]])


def replaced(names: Sequence[str], values: Sequence[Any], share: float = 1) -> Content:
    """JSONL in which one of these values stands for that of a name, in this share of the rows."""

    def content(rng: random.Random) -> str:
        found = rows(rng)
        for row in found:
            row |= {rng.choice(names): rng.choice(values)} if rng.random() < share else {}
        return jsonl(found)

    return content


NUMBERS = ["nan", "inf", "-inf", "NaN", "1e999", "None", "1,5", "0x10", "85%", "1_000", "ten"]
NONE, INF = float("nan"), float("inf")
VALUES = [None, True, [1, 2], {"a": {"b": 1}}, "x", 10**400, -(10**30), {}, [], NONE, INF]
HUGE = [1e308, -1e308, 1e-320, 5e-324, 1e200, -1e200, 0.0, 1e16]
STEPS = [0, -5, 1e300, 1e308, 3, 3, 3, None, "7", "x", 2.5, NONE, INF]
ODD_NAMES = ["", " ", "rewards//mean", "rewards/a/mean", "\u202ereward", "a" * 10_000, "x\ny"]
# whole files of JSON, one a line
OTHERS = [
    *("3", '"text"', "null", "[]", "{}", "[1, 2]", "[[1], [2]]", '{"a": "b"}', '{"reward": 0.3}'),
    *('{"log_history": []}', '{"log_history": {"a": 1}}', '{"log_history": [1]}'),
    *('{"reward": [1, 2, 3], "kl": [1]}', '{"step": [1, 2], "reward": [0.1, 0.2]}'),
    '[{"step": 1, "reward": 0.5}, null]',
]
HEADERS = ["step,reward\n", ",,,\n1,2,3,4\n", "a,b\n1\n", "1,2\n3,4\n", "reward\n1\n"]
BEGINS = [b"", b"PAR1", b"\x1f\x8b", b"{"]
ENCODINGS = ["utf-8-sig", "utf-16", "utf-16-be", "utf-32"]
FILES: Sequence[tuple[str, Content]] = [
    *(3 * [("log log.json log.jsonl log.csv", lambda rng: broken(rng, table(rng)))]),
    ("log.parquet", lambda rng: broken(rng, parquet(rng))),
    ("log.jsonl", replaced(NAMES, [*NUMBERS, "", " "], 0.9)),
    ("log.jsonl", replaced([*NAMES, "step"], VALUES)),
    ("trainer_state.json a.json a.jsonl", lambda rng: rng.choice(OTHERS)),
    ("deep.json", deep),
    ("twice.csv", lambda rng: csv(rows(rng)).replace("step", "reward", 1)),
    ("log.csv", lambda rng: csv(rows(rng), rng.choice([";", "\t", "|", " ", "::", "~"]))),
    ("log log.csv log.jsonl log.json log.parquet log.gz", lambda rng: rng.choice(BEGINS) + rng.randbytes(rng.randint(0, 4000))),
    ("a.csv a.json a.parquet", lambda rng: rng.choice(["", "\n\n", " ", "\ufeff", "\0"])),
    ("a.csv", lambda rng: rng.choice(HEADERS)),
    ("a.csv", ragged),
    ("a.jsonl", lambda rng: jsonl([{f"name{rng.random()}": 1.0, "b": i} for i in range(9)])),
    ("a.jsonl", replaced([*ODD_NAMES, "step ", "__MIN"], [1.0])),
    ("a.jsonl", replaced(["step"], STEPS)),
    ("a.jsonl", lambda rng: jsonl([{name: rng.choice(HUGE) for name in NAMES} for _ in range(9)])),
    ("log.gz", zipped),
]  # fmt: skip


# what else a path may be; each returns it


class Trap:
    """Unpickling it leaves a file behind."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (self.path,))


def pickled(rng: random.Random, to: Path) -> Path:
    trap = Trap(str(to / "unpickled"))
    buffer = io.BytesIO(pickle.dumps(trap, protocol=rng.randint(0, 5)))
    kind = rng.randrange(4)
    if kind == 0:
        np.save(buffer, np.array([trap], dtype=object), allow_pickle=True)
    if kind == 1:
        import torch

        torch.save({"trap": [1, 2]}, buffer)
    names = ["training_args.bin", "a.pt", "a.pkl", "a.json", "a.csv", "log"]
    return put(to / rng.choice(names), buffer.getvalue())


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
    names = [f"{to}/a\0b", f"{to}/" + "x" * 5000, f"{to}/none.csv", "", f"{to}/\udcff"]
    return Path(rng.choice(names))


def odd_completions(rng: random.Random, to: Path) -> Path:
    odd: list[Any] = [None, "", [], [{"role": "user", "content": "x"}], {"a": 1}, "p"]
    values: dict[str, list[Any]] = {
        "step": [1, 2, None],
        "prompt": odd,
        "completion": odd,
        "score": [0, 1, None, float("nan"), 1e308, "x"],
        "part": [0.0, 1.0],
        "advantage": [0.0, 1e308, -1e308, None, float("inf")],
    }
    found = [{n: rng.choice(v) for n, v in values.items()} for _ in range(rng.randint(1, 30))]
    return put(to / "completions.jsonl", jsonl(found))


OTHER_PATHS: list[Write] = [pickled, folder, special, bad_path, odd_completions]


def written(seed: int, to: Path) -> Path:
    """Write a log gone wrong, and return its path."""
    rng = random.Random(seed)
    kind = seed % (len(FILES) + len(OTHER_PATHS))
    if kind >= len(FILES):
        return OTHER_PATHS[kind - len(FILES)](rng, to)
    names, content = FILES[kind]
    return put(to / rng.choice(names.split()), content(rng))


def refused(error: InputError, path: Path) -> None:
    """Hold that it is one clear line."""
    line = str(error)
    assert "\n" not in line
    assert "expected" in line or "export" in line
    assert len(line) < 700 + len(str(path))
    assert path.name[:20] in line or "\\" in line or not path.name


def diagnosed(path: Path) -> bool:
    """Whether the log has a diagnosis, which can be shown; it is one clear line otherwise."""
    try:
        found = diagnose(path)
    except InputError as error:
        refused(error, path)
        return False
    assert diagnosis_text(found)
    json.dumps(diagnosis_json(found), allow_nan=False)
    for page in (diagnosis_html(found), comparison_html(compare(found, found))):
        assert page.rstrip().endswith("</html>")
        assert not re.search(r' d="[^"]*(nan|inf)', page)
    return True


@pytest.mark.filterwarnings("error")
def test_a_broken_log_is_one_clear_line_or_a_diagnosis(tmp_path: Path) -> None:
    outcomes: Counter[bool] = Counter()
    for seed in range(COUNT):
        place = tmp_path / str(seed)
        place.mkdir()
        try:
            outcomes[diagnosed(written(seed, place))] += 1
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        assert not (place / "unpickled").exists(), seed
    # neither way is left untried
    assert min(outcomes[True], outcomes[False]) >= 30


@pytest.mark.filterwarnings("error")
def test_a_broken_output_of_a_console_is_one_clear_line_or_rows(tmp_path: Path) -> None:
    read = 0
    for seed in range(300):
        rng = random.Random(seed)
        path = put(
            tmp_path / rng.choice(["log", "train.log", "log.txt"]), broken(rng, printed(rng))
        )
        try:
            read += bool(read_log(path).sources)
        except InputError as error:
            refused(error, path)
    assert read >= 100
