"""The reference's forward pass: a fresh module, with adapters in its weights, in float64 or the run's own precision. Axes: B sequences, T tokens, V words."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.linalg import vector_norm
from torch.nn.utils.rnn import pad_sequence

from rlvr_debug.errors import reason
from rlvr_debug.replay.finding import NotSeen, need
from rlvr_debug.replay.record import Forward, Record, Weights
from rlvr_debug.replay.settings import Sampling

EXACT = "float64"
Precision = str  # float64, or the run's: float32, bfloat16, autocast
_ROWS = 16  # sequences that go through the network together
_TOKENS = 256  # the same, of sequences of two tokens
Scalings = Mapping[str, Mapping[str, float]]
_KINDS = (".lora_", ".ia3_l.", ".modules_to_save.")
_KNOWN = (".lora_A.", ".lora_B.", ".lora_magnitude_vector.", ".ia3_l.", ".modules_to_save.")


@dataclass(eq=False)
class Network:
    """The record's architecture, whose module is built when it is first needed."""

    record: Record
    _last: Any = field(default=None, init=False, repr=False)

    @cached_property
    def module(self) -> Any:
        """Build the module, without the weights that it is made with. The run's random numbers stay as they are."""
        with torch.random.fork_rng():
            module = self.record.build().eval()
        _empty(module)
        return module

    @cache  # noqa: B019 - lives as long as the network
    def _in(self, dtype: torch.dtype) -> Any:
        """Return a copy of the module: its buffers, once rounded, would stay so."""
        return copy.deepcopy(self.module).to(dtype)

    def cast(self, weights: Weights, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the weights in this type. The last ones are kept: one state is read many times, one after the other."""
        if all(weight.dtype == dtype for weight in weights.values()):
            return dict(weights)
        key = (dtype, weights.keys(), [*map(id, weights.values())])
        if self._last is None or self._last[0] != key:
            self._last = None  # two at once are too many of a large model
            cut = {name: weight.to(dtype) for name, weight in weights.items()}
            # as long as the weights are held, their ids are no others'
            self._last = key, dict(weights), cut
        found: dict[str, Tensor] = self._last[2]
        return found

    def policy(self, number: int) -> dict[str, Tensor]:
        """Return the policy's weights of this number, as the architecture has them. Raise NotSeen where the record has none."""
        need(self.record.weights, "the policy's weights were not recorded")
        return self.plain(self.record.weights[number])

    def both(self, number: int) -> tuple[dict[str, Tensor], Weights]:
        """Return the policy's weights of this number, and with adapters that are merged in float64."""
        held = self.policy(number)
        if not self.record.scalings:
            return held, held
        return held, self.plain(self.cast(self.record.weights[number], torch.float64))

    def plain(self, weights: Weights) -> dict[str, Tensor]:
        """Return these weights of the policy as the architecture has them. Raise NotSeen where it does not have them."""
        plain = plain_weights(weights, self.record.scalings)
        if unknown := sorted(plain.keys() - self._names):
            raise NotSeen(f"the reference code lacks {unknown[0]}, which the trainer's model has")
        return plain

    @cached_property
    def _names(self) -> frozenset[str]:
        named = self.module.named_parameters(remove_duplicate=False)
        return frozenset(name for name, _ in named)

    def chosen(
        self,
        weights: Weights,
        forward: Forward,
        width: int,
        temperature: float,
        precision: Precision = EXACT,
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of the completions' tokens, [b, width], and of all words there, [b, width, V]."""
        ids, places = forward.input_ids, forward.places
        logits = self.logits(weights, forward, precision)
        if places is None:
            chosen, before = ids[:, -width:], logits[:, -width - 1 : -1]
        else:
            chosen = ids.gather(1, places)
            rows = torch.arange(len(ids))[:, None]
            before = logits[rows, (places - 1).clamp(min=0)]
        drawn = (before / temperature).log_softmax(-1)
        return drawn.gather(-1, chosen[..., None])[..., 0], drawn

    def logits(self, weights: Weights, forward: Forward, precision: Precision = EXACT) -> Tensor:
        """Return the logits of every token, [b, T, V], at least in float32."""
        dtype = torch.float32 if precision == "autocast" else getattr(torch, precision)
        coarse = torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast")
        names = ("input_ids", "attention_mask", "position_ids")
        given = ((name, getattr(forward, name)) for name in names)
        told: dict[str, Any] = {name: tensor for name, tensor in given if tensor is not None}
        told["use_cache"] = False
        module, cut = self._in(dtype), self.cast(weights, dtype)
        try:
            with coarse:
                found = functional_call(module, cut, (), told, tie_weights=True).logits
        except (RuntimeError, ValueError) as error:  # a kernel, or memory
            what = f"{type(module).__name__} cannot be computed in {precision}"
            raise NotSeen(f"{what}: {reason(error)}") from None
        lifted: Tensor = found.to(torch.promote_types(found.dtype, torch.float32))
        return lifted

    @torch.no_grad()
    def sampled(
        self,
        weights: Weights,
        prompts: Sequence[list[int]],
        outputs: Sequence[list[int]],
        sampling: Sampling,
        precision: Precision = EXACT,
        *,
        unread: Sequence[bool] = (),
        together: int = _ROWS,
    ) -> list[list[float]]:
        """Return log-probabilities of each output token, in the distribution that the sampler draws from.

        unread: whether a row's tokens may attend to none, not even themselves. together: rows that one pass has.
        """
        found: list[list[float]] = []
        for start in range(0, len(prompts), together):
            rows = list(zip(prompts[start:], outputs[start:], strict=True))[:together]
            ids = pad_sequence([torch.tensor([*p, *o]) for p, o in rows], batch_first=True)
            mask = None
            if unread:
                may = [not hidden for hidden in unread[start : start + together]]
                mask = torch.tensor(may).long()[:, None].expand_as(ids)
            logits = self.logits(weights, Forward(ids, mask), precision)
            for (prompt, output), row, own in zip(rows, logits, ids, strict=True):
                places = slice(len(prompt) - 1, len(prompt) + len(output) - 1)
                drawn = drawn_from(row[places], own, len(prompt), sampling)
                chosen = drawn.log_softmax(-1).gather(1, torch.tensor(output).long()[:, None])
                found.append(chosen[:, 0].tolist())
        return found

    def sampled_blind(
        self,
        weights: Weights,
        prompts: Sequence[list[int]],
        outputs: Sequence[list[int]],
        sampling: Sampling,
        precision: Precision = EXACT,
        *,
        width: int,
    ) -> list[list[float]]:
        """Return what `sampled` does of a sampler that reads each token alone, once it has drawn one from the prompt.

        So `generate` does where a model drops its cache. width: of the call's longest prompt; of the mask, which is as
        wide, it reads the first column, so that tokens of a row that is padded there attend to none.
        """
        first = self.sampled(weights, prompts, [o[:1] for o in outputs], sampling, precision)
        later = iter(
            self.sampled(
                weights,
                [[token] for output in outputs for token in output[:-1]],
                [[token] for output in outputs for token in output[1:]],
                sampling,
                precision,
                unread=[
                    len(p) < width for p, o in zip(prompts, outputs, strict=True) for _ in o[1:]
                ],
                together=_TOKENS,
            )
        )
        rows = zip(first, outputs, strict=True)
        return [[*begun, *(next(later)[0] for _ in output[1:])] for begun, output in rows]


def _empty(module: Any) -> None:
    """Take a module's weights from it: those of a record stand in for them. What is tied stays so."""
    empty: dict[int, torch.nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                nothing = torch.nn.Parameter(torch.empty_like(parameter, device="meta"))
                part._parameters[name] = empty.setdefault(id(parameter), nothing)


def drawn_from(logits: Tensor, ids: Tensor, prompt: int, sampling: Sampling) -> Tensor:
    """Return logits of output tokens as the sampler draws from them, [t, V]. ids: the sequence, of which `prompt` came before."""
    if sampling.repetition_penalty != 1:
        penalised = []
        for place, row in enumerate(logits):
            seen = torch.unique(ids[: prompt + place])
            own, by = row[seen], sampling.repetition_penalty
            own = torch.where(own < 0, own * by, own / by)
            penalised.append(row.index_copy(0, seen, own.to(row.dtype)))
        logits = torch.stack(penalised) if penalised else logits
    if sampling.min_new_tokens and sampling.ends:
        logits = logits.clone()
        logits[: sampling.min_new_tokens, list(sampling.ends)] = -math.inf
    logits = logits / sampling.temperature
    if sampling.top_k:
        least = logits.topk(min(sampling.top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    if sampling.top_p < 1:
        ordered, places = logits.sort(-1)
        dropped = ordered.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        dropped[:, -1:] = False
        dropped = torch.zeros_like(dropped).scatter(1, places, dropped)
        logits = logits.masked_fill(dropped, -math.inf)
    if sampling.min_p:
        probabilities = logits.softmax(-1)
        least = sampling.min_p * probabilities.max(-1, keepdim=True).values
        logits = logits.masked_fill(probabilities < least, -math.inf)
    return logits


# --- weights with an adapter -> the architecture's own: LoRA, DoRA and IA3 as peft has them, and modules trained whole


def is_adapter(name: str) -> bool:
    """Return whether this is the name of a weight that an adapter brings."""
    return any(kind in name for kind in _KINDS)


def plain_weights(weights: Mapping[str, Tensor], scalings: Scalings) -> dict[str, Tensor]:
    """Return the architecture's own parameters. Raise NotSeen for an adapter of another kind. scalings: of active adapters."""
    added = [name for name in weights if is_adapter(name)]
    if unknown := [name for name in added if not any(kind in name for kind in _KNOWN)]:
        raise NotSeen(f"no reference code for the adapter's {unknown[0]}")
    plain = {} if added else dict(weights)
    for name, weight in weights.items() if added else ():
        if not is_adapter(name):
            short = name.removeprefix("base_model.model.")
            short = short.replace(".base_layer.", ".").replace(".original_module.", ".")
            plain[short] = _adapted(weights, name, weight, scalings)
    return plain


def _adapted(
    weights: Mapping[str, Tensor], name: str, weight: Tensor, scalings: Scalings
) -> Tensor:
    whole, _, rest = name.partition(".original_module.")
    for adapter in scalings.get(whole, {}) if rest else ():
        weight = weights[f"{whole}.modules_to_save.{adapter}.{rest}"]
    module, _, kind = name.rpartition(".base_layer.")
    for adapter, scaling in scalings.get(module, {}).items() if module else ():
        scale = weights.get(f"{module}.ia3_l.{adapter}")
        if scale is not None:  # [out, 1], or of what a layer reads [1, in]
            scaled = kind == "weight" or scale.shape[0] > 1
            scale = scale if kind == "weight" else scale[:, 0]
            weight = weight * scale.to(weight.dtype) if scaled else weight
        elif kind == "weight":
            weight = _low_rank(weights, f"{module}.lora", weight, (adapter, scaling))
    return weight


def _low_rank(
    weights: Mapping[str, Tensor], place: str, weight: Tensor, how: tuple[str, float]
) -> Tensor:
    """Return W + scaling B A; of DoRA (arXiv 2402.09353) by rows of that norm, which has no gradient, times magnitudes."""
    adapter, scaling = how
    up, down = (weights[f"{place}_{side}.{adapter}.weight"].to(weight.dtype) for side in "BA")
    moved = weight + scaling * up @ down
    size = weights.get(f"{place}_magnitude_vector.{adapter}.weight")
    if size is None:
        return moved
    norm: Tensor = vector_norm(moved.detach(), dim=1, keepdim=True)
    return size.to(weight.dtype)[:, None] * moved / norm
