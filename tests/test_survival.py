"""A study that is killed, whose disk is full or cannot be written, whose port is taken: nothing left running,
nothing lost, and the same command takes it up again.
"""

import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.shared import once, ran
from tests.small_server import install
from tests.test_workflow import MINI, ROOT, Project, copy, end, error_line, finished_mini

# one hypothesis, whose only arm is the case
SMALL: dict[str, Any] = {**MINI, "hypotheses": {**MINI["hypotheses"], "kl-penalty": None}}
SERVED: dict[str, Any] = {**SMALL, "sampler": "vllm", "vllm": {"environment": "vllm-cpu"}}
# what is compared: the charts and the report are made of it
TABLES = ("--", "results/metrics.json")
# what is killed, by a word of its command line; the group is that of `make run`
TARGETS = {
    "snakemake": r"-m snakemake .*--snakefile",
    "trainer": r"scripts/train\.py",
    "server": r"small_server\.py|scripts/serve\.py|rlvr_debug/processes\.py",
    "group": "",
}


def ours(project: Project) -> list[psutil.Process]:
    """Every process that works in this project or names it."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        words = " ".join(process.info["cmdline"] or [])
        if process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        if str(project.root) in words or str(process.info["cwd"] or "").startswith(
            str(project.root)
        ):
            found.append(process)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A study with a server that was let alone; not to be changed."""

    def make(root: Path) -> None:
        project = served_copy(root, forked=True)
        done = project.run(*TABLES)
        assert done.returncode == 0, done.stderr
        assert ours(project) == []

    return Project(once(tmp_path_factory, "undisturbed", make))


@pytest.mark.parametrize(
    "kills", [pytest.param(4, marks=pytest.mark.heavy), pytest.param(20, marks=pytest.mark.deep)]
)
def test_a_study_killed_at_random_moments_ends_with_the_same_tables(
    kills: int, undisturbed: Project, tmp_path: Path
) -> None:
    """Each target in turn, and the same study taken up again after each; a new one where it was done."""
    chance = random.Random(20)
    project = served_copy(tmp_path / "0")
    for number in range(kills):
        target = list(TARGETS)[number % len(TARGETS)]
        killed = False
        while not killed:
            process = project.start("--cores", "2", *TABLES)
            try:
                killed = _kill(target, project, process, chance.uniform(0, 12))
                _, said = process.communicate(timeout=300)
            finally:
                end(process)
            assert killed or process.returncode == 0, said
            assert _gone(project, 5)
            if not project.to_do(*TABLES[1:]):
                assert project.tables() == undisturbed.tables()
                project = served_copy(tmp_path / f"{number + 1}-{killed}")
    done = project.run(*TABLES)
    assert done.returncode == 0, done.stderr
    assert project.tables() == undisturbed.tables()
    assert not list(project.study.rglob("*.tmp"))
    assert not list(project.study.rglob("checkpoint"))


def served_copy(root: Path, forked: bool = False) -> Project:
    root.mkdir(exist_ok=True)
    project = copy(ROOT, root, forked)
    install(root)
    project.overlay(SERVED)
    return project


def _gone(project: Project, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while left := ours(project):
        if time.monotonic() > deadline:
            print(*(process.cmdline() for process in left), sep="\n")
            return False
        time.sleep(0.1)
    return True


def _kill(target: str, project: Project, process: subprocess.Popen[str], after: float) -> bool:
    """Signal 9, that many seconds from now or as soon as there is such a process. False if it ended before."""
    time.sleep(after)
    while process.poll() is None:
        if target == "group":
            os.killpg(process.pid, signal.SIGKILL)
            return True
        for found in ours(project):
            try:
                if re.search(TARGETS[target], " ".join(found.cmdline())):
                    found.kill()
                    return True
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.02)
    return False


# --- the machine


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Project, Path]]:
    """A project whose study stands on a disk of its own: 1.5 MB."""
    project = copy(ROOT, tmp_path, forked=True)
    project.study.mkdir(parents=True)
    words = ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(project.study)]
    done = ran(words)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    try:
        yield project, project.study
    finally:
        subprocess.run(["umount", str(project.study)], check=True)


@pytest.mark.heavy
def test_a_full_disk_is_said_and_a_larger_one_lets_the_study_end(
    small_disk: tuple[Project, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    project, disk = small_disk
    done = project.run(*TABLES)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert any(re.search("model.safetensors: .*No space left on device", line) for line in lines)
    # how full the disk is at the end is chance: what was half written is gone again
    full = re.compile(rf"No space left on device|^error: {disk}: \d+ bytes free, expected more$")
    assert all(full.search(line) for line in lines)
    assert "Traceback" not in done.stderr
    assert not list(disk.rglob("*.tmp"))
    kept = (disk / "data/splits/musique/train.jsonl").stat().st_mtime_ns
    subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
    done = project.run(*TABLES)
    assert done.returncode == 0, done.stderr
    assert (disk / "data/splits/musique/train.jsonl").stat().st_mtime_ns == kept
    assert project.tables() == finished_mini(tmp_path_factory).tables()


def test_a_disk_that_cannot_be_written_is_one_line(small_disk: tuple[Project, Path]) -> None:
    project, disk = small_disk
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    done = project.run()
    assert error_line(done) == (
        f"error: {disk}: Read-only file system, expected a folder to write to"
    )
    assert len(done.stderr.splitlines()) == 1


def test_a_file_where_results_should_be_is_one_line(tmp_path: Path) -> None:
    project = copy(ROOT, tmp_path)
    project.study.mkdir(parents=True)
    project.results.write_text("not a folder", encoding="utf-8")
    done = project.run()
    assert error_line(done) == (
        f"error: {project.results}: Not a directory, expected a folder to write to"
    )


@pytest.mark.heavy
def test_two_studies_of_one_checkout_run_at_once(undisturbed: Project, tmp_path: Path) -> None:
    project = served_copy(tmp_path, forked=True)
    text = (project.root / "mini.yaml").read_text(encoding="utf-8")
    (project.root / "other.yaml").write_text(text.replace("study: mini", "study: other"))
    first = project.start("--cores", "1", *TABLES)
    second = project.start("--cores", "1", "--overlay", "other.yaml", *TABLES)
    for process in (first, second):
        _, said = process.communicate(timeout=600)
        assert process.returncode == 0, said
    tables = project.tables()
    project.results = project.root / "studies" / "other" / "results"
    assert tables == project.tables() == undisturbed.tables()


@pytest.mark.heavy
def test_a_port_that_is_taken_ends_the_baseline_alone_and_is_said(
    undisturbed: Project, tmp_path: Path
) -> None:
    project = served_copy(tmp_path, forked=True)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        project.overlay({**SERVED, "server": {"port": port}})
        done = project.run(*TABLES)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == (
            f"error: server.port: cannot bind port {port} of 127.0.0.1 (Address already in use); "
            "choose a free port, or 0 for a Unix socket"
        )
    runs = sorted(project.results.glob("runs/*/*/*/heldout.json"))
    assert len(runs) == 3  # what does not need that server is done
    times = [path.stat().st_mtime_ns for path in runs]
    done = project.run(*TABLES)
    assert done.returncode == 0, done.stderr
    assert [path.stat().st_mtime_ns for path in runs] == times
    assert project.tables() == undisturbed.tables()
