"""Programs in forks of one process begin, speak and end as those of an interpreter of their own do."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.check.forks import Forks
from tests.shared import ran, wait

SAYS = """
import os, sys
print(__name__, sys.argv[1:], os.getcwd(), os.environ["MINE"], sys.stdin.read(), "json" in sys.modules)
print("an error", file=sys.stderr)
if len(sys.argv) > 1:
    raise eval(sys.argv[1])
"""
WAITS = """
import os, subprocess
if os.environ.get("RANK") == "1":
    raise SystemExit(4)
with subprocess.Popen(["sleep", "60"]) as started, open("pids", "w") as file:
    print(os.getpid(), started.pid, file=file)
"""


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks(sys.executable, ["json", "no_such_module"]) as started:
        yield started


@pytest.mark.parametrize("word", ["", "SystemExit(3)", "SystemExit('x')", "ValueError('x')"])
def test_a_fork_does_what_the_interpreter_does(forks: Forks, word: str, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "says.py").write_text(SAYS, encoding="utf-8")

    def end(*command: str, path: str = "") -> tuple[int, str, str, str]:
        env = {**os.environ, "MINE": "set", "PYTHONPATH": path}
        words = [*command, *filter(None, [word])]
        done = ran(words, cwd=tmp_path / "scripts", env=env, input="given")
        first, *_, last = [*done.stderr.splitlines(), ""]
        return done.returncode, done.stdout.replace("False", "True"), first, last

    plain = end(sys.executable, "../scripts/says.py")
    assert plain[2] == "an error"
    assert plain == end(sys.executable, "../scripts/says.py", path=forks.folder)
    assert plain == end(*forks.python, "says.py") == end(*forks.python, "-m", "says")


@pytest.mark.parametrize(("processes", "status"), [(1, -9), (2, 4)])
def test_forks_end_with_whoever_asked_for_them_with_one_that_fails_and_in_time(
    forks: Forks, processes: int, status: int, tmp_path: Path
) -> None:
    (tmp_path / "waits.py").write_text(WAITS, encoding="utf-8")
    pids = tmp_path / "pids"

    def at_work() -> bool:
        return any(Path("/proc", pid).exists() for pid in pids.read_text("utf-8").split())

    with subprocess.Popen([*forks.python, "waits.py"], cwd=tmp_path) as asking:
        wait(lambda: pids.is_file() and pids.read_text("utf-8"))
        assert at_work()
        asking.kill()
    wait(lambda: not at_work())
    assert forks.run(["waits.py"], tmp_path, 2, processes, checked=False)[0] == status
    wait(lambda: not at_work())
