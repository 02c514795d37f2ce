"""Programs in forks of one process that has imported TRL once: a script under the check takes a fifth of the time."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self

from benchmarks.check import fork_server
from rlvr_debug.checkout import ROOT
from rlvr_debug.files import write_json

# what a script and its check import when they are needed
_USED = (
    *("datasets", "peft", "safetensors.torch", "trl.data_utils", "trl.models.utils"),
    *("rlvr_debug.replay.store", "rlvr_debug.recorders.trl.live", "trl.trainer.grpo_trainer"),
    *("transformers.models.auto.modeling_auto", "transformers.models.qwen2.modeling_qwen2"),
    *("transformers.models.llama.modeling_llama", "torch._dynamo"),
    *("benchmarks.check.script", "benchmarks.check.names"),
)
_ENDING = 60.0  # seconds for a program that is killed


class Forks:
    """A process that runs each program in a fork of itself. python: of the environment; modules: what it imports first."""

    def __init__(
        self,
        python: str,
        modules: Sequence[str] = _USED,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        apart = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}
        apart["DS_ACCELERATOR"] = "cpu"  # of DeepSpeed
        self._variables = {**os.environ, **apart, **variables}
        self._folder = tempfile.TemporaryDirectory()
        self._place = str(Path(self._folder.name, "socket"))
        self._process = subprocess.Popen(
            [python, "-P", fork_server.__file__, "serve", self._place, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._variables,
        )

    @property
    def python(self) -> tuple[str, ...]:
        """Return the words that do in a fork what the interpreter does."""
        self._wait()
        return (sys.executable, "-SE", fork_server.__file__, "ask", self._place)

    def run(
        self,
        argv: Sequence[str],
        folder: Path,
        limit: int,
        processes: int = 1,
        checked: bool = True,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[int, str]:
        """Return a script's exit status and what it said. Its answer, if any, is `answer.json` in the folder.

        processes: how many train together, as a launcher starts them. checked: False for the script by itself.
        variables: of its environment.
        """
        self._wait()
        log, port = folder / "log", _free_port()
        connections = []
        with log.open("ab") as said, open(os.devnull, "rb") as nothing:
            for rank in range(processes):
                words = [*_check(folder, rank, processes), *argv] if checked else argv
                told = {**self._variables, **variables, **_launched(rank, processes, port)}
                streams = (nothing.fileno(), said.fileno(), said.fileno())
                connections.append(
                    fork_server.request(self._place, words, str(folder), told, streams)
                )
        status = _worst(connections, limit)
        return status, log.read_text(encoding="utf-8", errors="replace")

    def programs(self) -> Path:
        """Return a folder with this environment's programs, where `python` runs in forks, and `python3` and snakemake do not.

        Snakemake's jobs are begun as `python script.py`.
        """
        venv, own = Path(self._folder.name, "venv"), Path(sys.executable).parent
        (venv / "bin").mkdir(parents=True)
        (venv / "lib").symlink_to(own.parent / "lib")
        shutil.copy(own.parent / "pyvenv.cfg", venv)
        for program in own.iterdir():
            if program.name not in ("python", "snakemake"):
                (venv / "bin" / program.name).symlink_to(program)
        _, *lines = (own / "snakemake").read_text(encoding="utf-8").splitlines()
        scripts = {"python": f'#!/bin/sh\nexec {shlex.join(self.python)} "$@"\n'}
        scripts["snakemake"] = "\n".join([f"#!{venv}/bin/python3", *lines, ""])
        for name, script in scripts.items():
            (venv / "bin" / name).write_text(script, encoding="utf-8")
            (venv / "bin" / name).chmod(0o755)
        return venv / "bin"

    def _wait(self) -> None:
        """Wait until it has imported all."""
        assert self._process.stdout is not None
        if not self._process.stdout.closed:
            self._process.stdout.readline()
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._folder.cleanup()


def _check(folder: Path, rank: int, processes: int) -> list[str]:
    """Return the words that begin a checked script's, which say where the file is that tells how it is checked."""
    told = folder / f"told.{rank}"
    asked = {"out": str(folder / "answer.json"), "steps": 3, "rewards": True, "record": None}
    ranks = {"ranks": [rank, processes, str(folder)], "limit": 600} if processes > 1 else {}
    write_json(told, {**asked, **ranks})
    return ["-m", "rlvr_debug.recorders.trl.check_script", str(told)]


def _launched(rank: int, processes: int, port: int) -> dict[str, str]:
    """Return what a launcher says to each of its processes."""
    if processes == 1:
        return {}
    sizes = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), **sizes, **place}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _worst(connections: Iterable[socket.socket], limit: float) -> int:
    """Return the status of the first program that fails, 0 where none does; a failing one takes the others with it."""
    waiting, worst = [*connections], 0
    end = time.monotonic() + limit
    while waiting:
        ready, _, _ = select.select(waiting, [], [], max(0.0, end - time.monotonic()))
        for connection in ready:
            waiting.remove(connection)
            status = fork_server.answer(connection)
            worst = worst or status
        if worst or not ready:
            for connection in waiting:
                connection.shutdown(socket.SHUT_WR)
            end += _ENDING
    return worst
