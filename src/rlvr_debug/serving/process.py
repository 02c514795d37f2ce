"""A model server as a process of ours: started on loopback with a key of its own, and gone when we are."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlvr_debug.errors import InputError
from rlvr_debug.guarded import guarded, last_line
from rlvr_debug.serving.endpoint import Endpoint

__all__ = ["Server", "model_folder", "served", "server_of", "why_it_ended"]

_HOST = "127.0.0.1"
_MODEL = "policy"


@dataclass(frozen=True)
class Server:
    """argv: what starts it, to which model, place and name are added as vLLM calls them; the key is in
    VLLM_API_KEY, for a command line can be read by others. port: 0 for any that is free."""

    argv: tuple[str, ...]
    port: int
    start_seconds: float


def server_of(sampler: str, settings: Mapping[str, Any]) -> Server:
    """sampler: of params.yaml, not in-process; settings: params.yaml's `server`."""
    assert sampler == "server"
    argv = (sys.executable, "-m", "rlvr_debug.serving.small_server")
    return Server(argv, settings["port"], settings["start_seconds"])


@contextmanager
def served(
    server: Server, model: Path, log: Path
) -> Iterator[tuple[Endpoint, subprocess.Popen[bytes]]]:
    """Its endpoint at once, while it still loads, and its process. It ends with the context.

    model: a folder; log: what it says. Raises InputError where the port is taken.
    """
    port = _free_port(server.port)
    key = secrets.token_urlsafe(32)
    argv = [*server.argv, "--model", str(model), "--served-model-name", _MODEL]
    argv += ["--host", _HOST, "--port", str(port)]
    with guarded(argv, log, {**os.environ, "VLLM_API_KEY": key}) as process:
        url = f"http://{_HOST}:{port}"
        yield Endpoint(url, key, _MODEL, process.pid, str(log), server.start_seconds), process


def why_it_ended(process: subprocess.Popen[bytes], log: Path) -> str:
    return f"the server ended with status {process.wait()}: {last_line(log)} (all of it: {log})"


def _free_port(asked: int) -> int:
    """That port, or any if it is 0. Raises InputError where somebody listens on it already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, asked))
        except OSError as error:
            raise InputError(
                f"server.port: {asked} of {_HOST} cannot be had ({error.strerror}), expected a free "
                "port, or 0 for any"
            ) from None
        return int(probe.getsockname()[1])


@contextmanager
def model_folder(base_model: Path, weights: Path | None) -> Iterator[Path]:
    """A folder as servers load it: the base model, with these weights for its own if there are any."""
    if weights is None:
        yield base_model
        return
    with TemporaryDirectory() as folder:
        for file in base_model.iterdir():
            if file.suffix != ".safetensors":
                (Path(folder) / file.name).symlink_to(file.resolve())
        (Path(folder) / "model.safetensors").symlink_to(weights.resolve())
        yield Path(folder)
