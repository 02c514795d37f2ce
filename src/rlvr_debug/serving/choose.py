"""Who samples in a job: this process, a server that is there, or one of the job's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from rlvr_debug.jobs import Sampling
from rlvr_debug.models.adapters import trained_weights
from rlvr_debug.models.architectures import check_config, why_unread
from rlvr_debug.models.base_model import load_weights, model_config
from rlvr_debug.sampling.base import Sampler
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.generate import GenerateSampler
from rlvr_debug.sampling.in_process import InProcessSampler

# what speaks with servers, by name: other trainers' environments need not have what it imports
SERVED = "rlvr_debug.serving.served"


def base_sampler(
    base_model: Path, chat: Chat, weights: Path | None = None
) -> InProcessSampler | GenerateSampler:
    """Return the sampler of the base model, or of trained `weights`: a model's, or an adapter's of the base model."""
    config = model_config(base_model)
    check_config(config, base_model / "config.json")
    if why := why_unread(config):
        sampler = GenerateSampler(base_model, chat.ends, why)
        if weights:
            sampler.load(trained_weights(weights, base_model))
        return sampler
    if weights:
        found = trained_weights(weights, base_model)
    else:
        found = load_weights(base_model / "model.safetensors")
    return InProcessSampler(config, found, chat.ends)


@contextmanager
def sampler_of(
    asked: Sampling, base_model: Path, weights: Path | None, chat: Chat
) -> Iterator[Sampler]:
    """Yield the sampler of the base model, or of trained `weights`, for as long as the context is open."""
    if not asked.served:
        yield base_sampler(base_model, chat, weights)
        return
    with import_module(SERVED).served_sampler(asked, base_model, weights, chat) as sampler:
        yield sampler
