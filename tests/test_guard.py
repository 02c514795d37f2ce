"""How a program under the guard is ended: asked first, and made to soon after."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rlvr_debug.processes import guarded
from tests.shared import wait

# a child in its group; both say that they are there, and do as they are told on SIGTERM
PROGRAM = """
import os, pathlib, signal, subprocess, sys, time
folder, name, on_sigterm = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
mark = folder / name
def tidy(*_):
    time.sleep(0.3)
    mark.unlink()
    os._exit(0)
signal.signal(signal.SIGTERM, tidy if on_sigterm == "tidy" else signal.SIG_IGN)
if name == "parent":
    from multiprocessing.shared_memory import SharedMemory
    memory = SharedMemory(create=True, size=8)
    (folder.parent / "memory").write_text(memory.name)
    subprocess.Popen([sys.executable, __file__, str(folder), "child", on_sigterm])
mark.write_text(str(os.getpid()))
time.sleep(600)
"""


@pytest.fixture
def argv(tmp_path: Path) -> list[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "marks").mkdir()
    return [sys.executable, str(program), str(tmp_path / "marks"), "parent"]


def pids(folder: Path) -> list[int]:
    """Of parent and child, when both are there."""

    def found() -> list[str] | None:
        texts = [file.read_text() for file in folder.glob("marks/*")]
        return texts if len(texts) == 2 and all(texts) else None

    return [int(text) for text in wait(found)]


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("on_sigterm", ["tidy", "ignore"])
def test_all_of_a_program_may_tidy_up_and_none_may_stay(
    argv: list[str], tmp_path: Path, on_sigterm: str
) -> None:
    with guarded([*argv, on_sigterm], tmp_path / "log.txt", os.environ):
        found = pids(tmp_path)
        begin = time.monotonic()
    seconds = time.monotonic() - begin
    assert all(map(gone, found))
    assert not Path("/dev/shm", (tmp_path / "memory").read_text()).exists()
    if on_sigterm == "tidy":
        assert list(tmp_path.glob("marks/*")) == []
        assert 0.3 <= seconds < 2  # no longer than it took
    else:
        assert 2 <= seconds < 5


STARTER = """
import os, pathlib, sys, time
from rlvr_debug.processes import guarded
with guarded(sys.argv[2:], pathlib.Path(sys.argv[1]), os.environ):
    time.sleep(600)
"""


@pytest.mark.parametrize("on_sigterm", ["tidy", "ignore"])
def test_so_it_is_when_whoever_started_it_is_killed(
    argv: list[str], tmp_path: Path, on_sigterm: str
) -> None:
    words = [sys.executable, "-c", STARTER, str(tmp_path / "log.txt"), *argv, on_sigterm]
    starter = subprocess.Popen(words)
    found = pids(tmp_path)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    wait(lambda: all(map(gone, found)), seconds=5)
    assert bool(list(tmp_path.glob("marks/*"))) == (on_sigterm == "ignore")
    memory = Path("/dev/shm", (tmp_path / "memory").read_text())
    wait(lambda: not memory.exists(), seconds=5)


def test_what_a_program_left_behind_is_ended_before_its_end_is_told(
    argv: list[str], tmp_path: Path
) -> None:
    with guarded([*argv, "tidy"], tmp_path / "log.txt", os.environ) as process:
        pids(tmp_path)
        parent, child = (int((tmp_path / "marks" / n).read_text()) for n in ("parent", "child"))
        os.kill(parent, signal.SIGKILL)
        assert process.wait() == 128 + signal.SIGKILL
        assert gone(child)
    assert not (tmp_path / "marks" / "child").exists()
