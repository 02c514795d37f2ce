"""Samplers that are servers: one that is there, or one of the job's own."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rlvr_debug.errors import InputError
from rlvr_debug.jobs import Sampling, Trained
from rlvr_debug.models.base_model import adapter_of, rank_of
from rlvr_debug.models.places import index_of
from rlvr_debug.sampling.base import Sampler
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.serving.client import ServedAdapter, ServedPolicy, ServedSampler
from rlvr_debug.serving.process import Endpoint, read_endpoint, server_of, started, wait_until_ready

_POLL = 0.5  # seconds
_NOTICED = 20.0  # seconds in which a server's job sees that it ended


@contextmanager
def served_sampler(
    asked: Sampling, base_model: Path, weights: Path | None, chat: Chat
) -> Iterator[Sampler]:
    """Yield the sampler of the base model, or of trained `weights`, that asks a server."""
    if asked.endpoint and weights:
        raise InputError(
            f"{asked.endpoint}: that server has the base model, and cannot sample for {weights}"
        )
    adapter = adapter_of(weights) if weights else None
    if adapter:
        with _server(asked, base_model, Trained(rank_of(adapter), 1)) as start:
            yield ServedAdapter(start(), chat.ends, adapter, start)
        return
    with model_folder(base_model, weights) as model, _server(asked, model) as start:
        yield ServedSampler(start(), chat.ends, start)


@contextmanager
def served_policy(
    asked: Sampling, base_model: Path, name: str, lora_r: int, chat: Chat
) -> Iterator[ServedPolicy]:
    """Yield vLLM's sampler of a policy that is trained; lora_r is its adapter's rank, 0 where all weights are trained."""
    with (
        _server(asked, base_model, Trained(lora_r, 1)) as start,
        TemporaryDirectory() as folder,
        closing(ServedPolicy(start(), chat.ends, name, Path(folder), start)) as policy,
    ):
        yield policy


@contextmanager
def _server(
    asked: Sampling, model: Path, trained: Trained | None = None
) -> Iterator[Callable[[], Endpoint]]:
    """Yield what returns at each call a server that is ready, another one than before."""
    if asked.endpoint:
        yield _following(asked.endpoint)
        return
    # the port of params.yaml is that of the server which jobs share
    own = replace(asked, server={**asked.server, "port": 0})
    server = server_of(own, trained)
    with TemporaryDirectory() as folder, started(server, model, Path(folder)) as start:
        yield start


def _following(file: Path) -> Callable[[], Endpoint]:
    """The server of another job, which starts it once more when it ends and says so in its file."""
    last: list[Endpoint] = []

    def start() -> Endpoint:
        deadline = time.monotonic() + _NOTICED
        while (there := read_endpoint(file)) in last:
            if time.monotonic() > deadline:
                raise InputError(f"{file}: no new server within {_NOTICED:g} s")
            time.sleep(_POLL)
        last.append(there)
        wait_until_ready(there)
        return there

    return start


@contextmanager
def model_folder(base_model: Path, weights: Path | None) -> Iterator[Path]:
    """Yield a folder as servers load it: the base model, with these weights of a whole model for its own if there are any."""
    if weights is None:
        yield base_model
        return
    with TemporaryDirectory() as folder:
        # vLLM would miss the shards that an index names
        index = index_of(base_model).name
        for file in base_model.iterdir():
            if file.suffix != ".safetensors" and file.name != index:
                (Path(folder) / file.name).symlink_to(file.resolve())
        (Path(folder) / "model.safetensors").symlink_to(weights.resolve())
        yield Path(folder)
