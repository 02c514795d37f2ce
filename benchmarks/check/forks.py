"""Scripts under the check, each in a fork of one process that has imported TRL once: a fifth of the time.

    python -m benchmarks.check.forks

reads a line of JSON from stdin for each script (`argv`: its path and arguments; `told`: the file that says how it is
checked, none for a script by itself; `folder`: where it runs; `log`: what it says; `limit`: seconds; `processes`: how many;
`variables`: of the environment) and answers with its exit status.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Self

from rlvr_debug.checkout import ROOT
from rlvr_debug.files import write_json

# what a script and its check import when they are needed
_USED = (
    *("datasets", "peft", "safetensors.torch", "benchmarks.check.script", "trl.data_utils"),
    *("rlvr_debug.replay.store", "rlvr_debug.recorders.trl.live", "trl.trainer.grpo_trainer"),
    *("transformers.models.auto.modeling_auto", "transformers.models.qwen2.modeling_qwen2"),
    *("transformers.models.llama.modeling_llama", "torch._dynamo", "trl.models.utils"),
)


class Forks:
    """A process that runs one script after the other. python: of the environment that has TRL."""

    def __init__(self, python: str) -> None:
        path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        apart = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}
        apart["DS_ACCELERATOR"] = "cpu"  # of DeepSpeed
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.check.forks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **apart},
        )

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
        told, log = folder / "told.json", folder / "log"
        out = str(folder / "answer.json")
        asked = {"out": out, "steps": 3, "rewards": True, "record": None}
        for rank in range(processes):
            ranks = {"ranks": [rank, processes, str(folder)], "limit": 600} if processes > 1 else {}
            write_json(told.with_suffix(f".{rank}"), {**asked, **ranks})
        files = {"told": str(told) if checked else "", "folder": str(folder), "log": str(log)}
        how = {"limit": limit, "processes": processes, "variables": dict(variables)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"argv": list(argv), **how, **files}) + "\n")
        self._process.stdin.flush()
        status = self._process.stdout.readline()
        said = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        return int(status or 1), said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate()


def _main() -> None:
    import importlib

    for name in _USED:
        try:
            importlib.import_module(name)
        except ImportError:  # an older release is without it
            continue
    from rlvr_debug.replay.consequences import CONSEQUENCES
    from rlvr_debug.replay.segments import SEGMENTS
    from rlvr_debug.replay.variants import check_names

    check_names([segment.name for segment in SEGMENTS], CONSEQUENCES)  # reads all names
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(_forked(json.loads(line), answers), file=answers, flush=True)


def _forked(asked: Mapping[str, Any], answers: IO[str]) -> int:
    """Return the status of the first process that fails, 0 where none does; a failing one takes the others with it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    count = asked["processes"]
    children = [_child(asked, answers, rank, port) for rank in range(count)]
    worst = 0
    for _ in range(count):
        child, ended = os.wait()
        children.remove(child)
        status = os.waitstatus_to_exitcode(ended)
        if status and not worst:
            worst = status
            for other in children:
                os.kill(other, signal.SIGKILL)
    return worst


def _child(asked: Mapping[str, Any], answers: IO[str], rank: int, port: int) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        answers.close()
        signal.alarm(asked["limit"])
        os.environ.update(asked["variables"])
        size = str(asked["processes"])
        if size != "1":
            here = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size}
            there = {"LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            os.environ.update(here | there)
        log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for place, file in ((0, nothing), (1, log), (2, log)):
            os.dup2(file, place)
        os.chdir(asked["folder"])
        status = _checked(asked, rank)
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def _checked(asked: Mapping[str, Any], rank: int) -> int:
    from rlvr_debug.recorders.trl import check_script

    try:
        if asked["told"]:
            told = str(Path(asked["told"]).with_suffix(f".{rank}"))
            sys.argv = ["check_script", told, *asked["argv"]]
            check_script.main()
        else:
            sys.argv = asked["argv"]
            sys.path[0] = str(Path(sys.argv[0]).parent)
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    _main()
