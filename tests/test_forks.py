"""Programs in forks of one process begin, speak and end as those of an interpreter of their own do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
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
import os, time
with open(f"{os.environ.get('RANK')}.pid", "w") as file:
    file.write(str(os.getpid()))
time.sleep(60)
"""


@pytest.fixture(scope="module")
def started() -> Iterator[Forks]:
    with Forks(sys.executable, ["json", "no_such_module"]) as found:
        yield found


@pytest.mark.parametrize(
    "words", [[], ["SystemExit(3)"], ["SystemExit('in words')"], ["ValueError('x')"]]
)
def test_a_fork_does_what_the_interpreter_does(
    started: Forks, words: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "says.py"
    script.write_text(SAYS, encoding="utf-8")
    env = {**os.environ, "MINE": "set"}
    forked, plain = (
        ran([*python, script, *words], cwd=tmp_path, env=env, input="given")
        for python in (started.python, (sys.executable,))
    )
    assert forked.returncode == plain.returncode
    assert forked.stdout == plain.stdout.replace("False", "True")
    said = [done.stderr.splitlines() for done in (forked, plain)]
    assert (said[0][0], said[0][-1]) == (said[1][0], said[1][-1])


def test_a_module_is_found_as_the_interpreter_finds_it(started: Forks, tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("import sys; print(sys.argv[1:])", encoding="utf-8")
    done = ran([*started.python, "-m", "here", "word"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "['word']\n")


def waiting(folder: Path) -> str:
    script = folder / "waits.py"
    script.write_text(WAITS, encoding="utf-8")
    return str(script)


def is_at_work(file: Path) -> bool:
    return Path("/proc", file.read_text(encoding="utf-8")).exists()


def test_a_fork_ends_with_whoever_asked_for_it(started: Forks, tmp_path: Path) -> None:
    with subprocess.Popen([*started.python, waiting(tmp_path)], cwd=tmp_path) as asking:
        file = tmp_path / "None.pid"
        wait(lambda: file.is_file() and file.read_text(encoding="utf-8"))
        assert is_at_work(file)
        asking.kill()
    wait(lambda: not is_at_work(file))


def test_a_process_that_fails_takes_the_others_with_it(started: Forks, tmp_path: Path) -> None:
    fails = "import os\nif os.environ['RANK'] == '1': raise SystemExit(4)\n"
    (tmp_path / "fails.py").write_text(fails + WAITS, encoding="utf-8")
    begun = time.monotonic()
    status, _ = started.run([str(tmp_path / "fails.py")], tmp_path, 50, 2, checked=False)
    assert status == 4
    assert time.monotonic() - begun < 30


def test_a_program_that_takes_too_long_is_ended(started: Forks, tmp_path: Path) -> None:
    status, _ = started.run([waiting(tmp_path)], tmp_path, 1, checked=False)
    assert status == -9
    assert not is_at_work(tmp_path / "None.pid")
