"""Who samples in a job: a server or this process, and there, for any model that our own sampler does not read, transformers' slower `generate`."""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlvr_debug.errors import InputError
from rlvr_debug.jobs import Sampling
from rlvr_debug.models.architectures import why_unread
from rlvr_debug.models.base_model import load_model, load_weights, model_config, trained_weights
from rlvr_debug.sampling.base import PolicySampler, Request, Sample, Sampler
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler


class GenerateSampler(PolicySampler):
    """base_model: its folder. ends: the tokens that end a turn. why: what the faster sampler cannot read."""

    def __init__(self, base_model: Path, ends: Collection[int], why: str) -> None:
        from transformers import GenerationConfig

        warnings.warn(
            f"{base_model}/config.json: {why}, by our own sampler: rollouts come from transformers' generate, "
            "which is slower",
            stacklevel=3,
        )
        self._place, self._ends = base_model, sorted(ends)
        self._model = load_model(base_model, "sdpa")
        # what a model's authors set for it, such as top_p, is another distribution than the one that is trained
        self._model.generation_config = GenerationConfig()

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy new weights in. Raise InputError for those of another model."""
        own = self._model.state_dict()
        shared = {own[name].data_ptr() for name in own.keys() & weights.keys()}
        missing = {name for name in own if own[name].data_ptr() not in shared}
        if wrong := sorted(missing | (weights.keys() - own.keys())):
            raise InputError(
                f"{self._place}: tensor '{wrong[0]}' is in only one of the model and the weights"
            )
        self._model.load_state_dict(weights, strict=False)

    def weights(self) -> dict[str, Tensor]:
        return dict(self._model.state_dict())

    @torch.no_grad()
    def sample(
        self, requests: list[Request], *, temperature: float, max_new_tokens: int, seed: int
    ) -> list[Sample]:
        drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        histories = [torch.tensor(request.ids) for request in requests]
        # as long as the longest, filled up on the left
        ids = pad_sequence(histories, batch_first=True, padding_side="left")
        seen = pad_sequence(
            [torch.ones_like(h) for h in histories], batch_first=True, padding_side="left"
        )
        tokens = ids.shape[1] + max_new_tokens
        most = getattr(self._model.config, "max_position_embeddings", None)
        if most and tokens > most:
            raise InputError(
                f"{self._place}: a conversation and its reply have {tokens} tokens, expected at most the model's {most}"
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            out = self._model.generate(
                ids,
                attention_mask=seen,
                max_new_tokens=max_new_tokens,
                eos_token_id=self._ends,
                pad_token_id=self._ends[0],
                return_dict_in_generate=True,
                output_scores=True,
                **(drawn if temperature else {"do_sample": False}),
            )
        written = out.sequences[:, ids.shape[1] :]
        # of temperature 0 they are at 1
        scores = torch.stack(out.scores, 1).log_softmax(-1)
        logprobs = scores.gather(2, written[..., None])[..., 0]
        return [self._cut(*row) for row in zip(written.tolist(), logprobs.tolist(), strict=True)]

    def _cut(self, ids: list[int], logprobs: list[float]) -> Sample:
        """Return a row of the batch up to what ends its turn; what follows is padding."""
        length = next((n for n, token in enumerate(ids, 1) if token in self._ends), 0)
        end = length or len(ids)
        return Sample(ids[:end], logprobs[:end], stopped=bool(length))

    @torch.no_grad()
    def logprobs(self, ids: list[list[int]]) -> list[list[float]]:
        """Return the log-probabilities, at temperature 1, of all tokens but the first of each of these sequences."""
        rows = [torch.tensor(tokens) for tokens in ids]
        whole = pad_sequence(rows, batch_first=True)
        seen = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        distribution = self._model(whole, attention_mask=seen).logits[:, :-1].log_softmax(-1)
        found = distribution.gather(2, whole[:, 1:, None])[..., 0]
        return [row[: len(tokens) - 1].tolist() for row, tokens in zip(found, ids, strict=True)]


# what speaks with servers, by name: other trainers' environments need not have what it imports
SERVED = "rlvr_debug.serving.served"


def base_sampler(
    base_model: Path, chat: Chat, weights: Path | None = None
) -> InProcessSampler | GenerateSampler:
    """Return the sampler of the base model, or of trained `weights`: a model's, or an adapter's of the base model."""
    config = model_config(base_model)
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
