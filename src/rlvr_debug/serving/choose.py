"""The sampler of a job that only samples: in this process, on a server that is there, or on one of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlvr_debug.errors import InputError
from rlvr_debug.sampling.base import Sampler
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.serving.client import ServedSampler
from rlvr_debug.serving.endpoint import read_endpoint, wait_until_ready
from rlvr_debug.serving.process import model_folder, served, server_of
from rlvr_debug.study import base_sampler

__all__ = ["sampler_of"]


@contextmanager
def sampler_of(
    sampler: str,
    settings: Mapping[str, Any],
    base_model: Path,
    weights: Path | None,
    endpoint: Path | None,
    chat: Chat,
) -> Iterator[Sampler]:
    """Of the base model, or of trained `weights`, for as long as the context is open.

    sampler, settings: as server_of wants them. endpoint: the file of a server that has the base
    model, else one is started where the sampler is no process of ours. Raises InputError where that fails.
    """
    if sampler == "in-process":
        yield base_sampler(base_model, chat, weights)
    elif endpoint:
        if weights:
            raise InputError(
                f"{endpoint}: that server has the base model, expected none for {weights}"
            )
        there = read_endpoint(endpoint)
        wait_until_ready(there)
        yield ServedSampler(there, chat.eos_id)
    else:
        # the port of params.yaml is that of the server which jobs share
        server = server_of(sampler, {**settings, "port": 0})
        with (
            TemporaryDirectory() as folder,
            model_folder(base_model, weights) as model,
            served(server, model, Path(folder, "log.txt")) as (own, _),
        ):
            wait_until_ready(own)
            yield ServedSampler(own, chat.eos_id)
