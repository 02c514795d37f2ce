"""Programs in forks of one process that has imported TRL once: a script under the check takes a fifth of the time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Self

from benchmarks.check import fork_server
from rlvr_debug.checkout import ROOT
from rlvr_debug.files import write_json

# what programs that train import when they are needed
LIBRARIES = (
    *("torch._dynamo", "datasets", "peft", "safetensors.torch", "transformers.trainer"),
    *("transformers.models.auto.modeling_auto", "transformers.models.qwen2.modeling_qwen2"),
    *("transformers.models.llama.modeling_llama", "transformers.generation.utils"),
)
# and a script of TRL and its check
USED = (
    *LIBRARIES,
    *("trl.trainer.grpo_trainer", "trl.data_utils", "trl.models.utils", "rlvr_debug.replay.check"),
    *("rlvr_debug.replay.store", "rlvr_debug.recorders.trl.live", "benchmarks.check.script"),
)


class Forks:
    """A process that runs each program in a fork of itself. python: of the environment; modules: what it imports first."""

    def __init__(self, python: str, modules: Sequence[str] = USED) -> None:
        path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        apart = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}
        apart |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
        apart["DS_ACCELERATOR"] = "cpu"  # of DeepSpeed
        self._variables = {**os.environ, **apart}
        self._process = subprocess.Popen(
            [python, "-P", fork_server.__file__, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._variables,
        )

    @cached_property
    def folder(self) -> str:
        """Return the one which, on PYTHONPATH, has `python scripts/NAME.py` run in a fork."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    @property
    def python(self) -> tuple[str, ...]:
        """Return the words that do in a fork what the interpreter does."""
        return (sys.executable, "-SE", f"{self.folder}/sitecustomize.py")

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

        processes: how many train together, as a launcher starts them: the status is of the first that fails, which takes
        the others with it. checked: False for the script by itself. variables: of its environment.
        """
        log = folder / "log"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with log.open("ab") as said:
            running = [
                subprocess.Popen(
                    [*self.python, *(_check(folder, rank, processes) if checked else ()), *argv],
                    cwd=folder,
                    env={**self._variables, **variables, **_launched(rank, processes, port)},
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                )
                for rank in range(processes)
            ]
        end = time.monotonic() + limit
        while None in (ended := {each.poll() for each in running}) and not any(ended):
            if time.monotonic() > end:
                break
            time.sleep(0.05)
        for each in running:
            each.kill()
        status = next(filter(None, (*ended, *(each.wait() for each in running))), 0)
        return status, log.read_text(encoding="utf-8", errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


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
    here = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
    here["LOCAL_WORLD_SIZE"] = processes
    return {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in here.items()}}
