"""What a recorder keeps of the objects that a trainer of TRL works with."""

import copy
import inspect
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.utils import get_json_schema

from rlvr_debug.recorders.keeping import kept, own_name, stacked
from rlvr_debug.replay.architecture import compute_plainly
from rlvr_debug.replay.network import Scalings
from rlvr_debug.replay.record import ROW_TOOLS, UNOPENED, Batch, Call

ROW = "rlvr_debug_row"  # a column of the batch, which travels through the shuffle
ELEMENTS = 4096  # of each tensor of a large model
_GIB = 2**30


def adapters_of(model: Any) -> Scalings:
    """Return each module's adapters that are on, and what B A is multiplied by; 1 where nothing is."""
    found: dict[str, dict[str, float]] = {}
    for name, module in model.named_modules():
        active = getattr(module, "active_adapters", None) or ()
        if hasattr(module, "lora_A") and hasattr(module, "scaling"):
            found[name] = {each: module.scaling[each] for each in active if each in module.scaling}
        elif hasattr(module, "ia3_l"):
            found[name] = {each: 1.0 for each in active if each in module.ia3_l}
        elif hasattr(module, "original_module") and hasattr(module, "modules_to_save"):
            found[name] = {each: 1.0 for each in active if each in module.modules_to_save}
    return {own_name(name): own for name, own in found.items() if own}


def some_elements(sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """Return which numbers of each tensor are looked at, drawn once, [n]; of a small tensor all."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randint(size, (ELEMENTS,), generator=generator).sort().values
        for name, size in sizes.items()
        if size > ELEMENTS
    }


def kept_batch(told: Mapping[str, Any]) -> Batch:
    def optional(name: str) -> Tensor | None:
        tensor = told.get(name)
        return kept(tensor) if isinstance(tensor, Tensor) else None

    mask = told["completion_mask"]
    counted = mask if told.get("tool_mask") is None else mask * told["tool_mask"]
    return Batch(
        prompt_ids=kept(told["prompt_ids"]),
        prompt_mask=kept(told["prompt_mask"]),
        completion_ids=kept(told["completion_ids"]),
        completion_mask=kept(mask),
        loss_mask=kept(counted).bool(),
        advantages=kept(told["advantages"]),
        old=optional("old_per_token_logps"),
        reference=optional("ref_per_token_logps"),
        sampler=optional("sampling_per_token_logps"),
        importance_weights=optional("importance_sampling_ratio"),
        rows=optional(ROW),
    )


def kept_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a row's columns; what cannot be copied is left out."""
    found = {}
    for name, value in row.items():
        with suppress(Exception):  # an image, a handle: not compared
            found[name] = copy.deepcopy(value)
    said = [] if "prompt" in found else found.pop("messages", [])  # ms-swift's
    return {"prompt": said, **found} if said else found


def dropouts_of(model: Any) -> list[tuple[Any, str, float]]:
    """Return each dropout of a model: a module, the name of its probability, and that. Attention has one without a module."""
    return [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, float)
        and value > 0
        and ("dropout" in name or (name == "p" and isinstance(module, torch.nn.Dropout)))
    ]


def without_dropout(model: Any) -> Callable[[], None]:
    """Switch dropout off, noise that no reference could draw again; return what switches it on again."""
    found = dropouts_of(model)
    for module, name, _ in found:
        setattr(module, name, 0.0)

    def restore() -> None:
        for module, name, value in found:
            setattr(module, name, value)

    return restore


def give_back(trainer: Any) -> None:
    """Free what a trainer that makes no step any more holds in memory: weights, gradients, the optimizer's state."""
    if trainer.optimizer is not None:
        trainer.optimizer.state.clear()
    for model in filter(None, (trainer.model, getattr(trainer, "ref_model", None))):
        for parameter in model.parameters():
            parameter.grad = None
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)


def plain_module(model: Any) -> Any:
    """Return a module of the model's architecture in float32, with none of what trainers patch on theirs."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = copy.deepcopy(base.config)
    compute_plainly(config, type(base))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        module = type(base)(config)
    finally:
        torch.set_default_dtype(before)
    # the token whose embedding has no gradient is the one that the model was loaded with
    unmoved = {n: m.padding_idx for n, m in _embeddings(base)}
    for name, embedding in _embeddings(module):
        embedding.padding_idx = unmoved.get(name, embedding.padding_idx)
    return module


def _embeddings(model: Any) -> Iterator[tuple[str, torch.nn.Embedding]]:
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding):
            yield name.removesuffix(".original_module").removesuffix(".base_layer"), module


def needs_of(weights: int, trained: int, logits: int, steps: int) -> tuple[float, float]:
    """Return the bytes of memory, and on disk, that a check needs: all weights and logits in float64; trained ones for each step."""
    return 8.0 * weights + 5 * 8.0 * logits, 4.0 * trained * (steps + 1)


def large_note(rows: int, needs: tuple[float, float]) -> str:
    """Return what is said of a large model's check. rows: of a batch, that go through the reference."""
    memory, disk = (each / _GIB for each in needs)
    what = f"{rows} rows of a batch, {ELEMENTS} numbers of each tensor, and the gradient of the last layer"
    own = f"the check needs about {memory:.1f} GiB of memory beside the script's own"
    room = f"{disk:.1f} GiB in {tempfile.gettempdir()}"
    return f"the model is large: only {what} are checked; {own}, and {room}"


# --- TRL before 0.15, whose loss generates, scores and computes all by itself


def at_once(trainer: Any) -> bool:
    """Return whether the trainer has no method that makes a batch, nor one for log-probabilities."""
    names = ("_generate_and_score_completions", "_get_per_token_logps")
    newer = (*names, "_get_per_token_logps_and_entropies")
    return not any(hasattr(trainer, name) for name in newer)


def sampled_batch(calls: Sequence[Call], pad: int = 0) -> Batch:
    """Return the tokens of the sampler's calls as a batch that is trained on whole; advantages are not known."""
    prompts = [torch.tensor(row) for call in calls for row in call.prompts]
    outputs = [torch.tensor(row) for call in calls for row in call.outputs]
    real = [torch.ones_like(row) for row in outputs]
    return Batch(
        prompt_ids=_padded([row.flip(0) for row in prompts], pad).flip(1),
        prompt_mask=_padded([torch.ones_like(row) for row in prompts]).flip(1),
        completion_ids=_padded(outputs, pad),
        completion_mask=_padded(real),
        loss_mask=_padded(real).bool(),
        advantages=torch.zeros(0),
    )


def _padded(rows: Sequence[Tensor], padding: int = 0) -> Tensor:
    if not rows:
        return torch.zeros(0, 0, dtype=torch.long)
    return pad_sequence([*rows], batch_first=True, padding_value=padding)


# --- what environments do to the rows that they are reset for: the prompt's end, tools, and whose state they are in


@dataclass(frozen=True)
class Reset:
    """An environment that was reset for a row: what it said, and its plain attributes after that."""

    environment: Any
    said: Any
    state: dict[str, str]

    @classmethod
    def of(cls, environment: Any, said: Any) -> Self:
        return cls(environment, copy.deepcopy(said), _plain(environment))


def _plain(environment: Any) -> dict[str, str]:
    held = {**vars(type(environment)), **getattr(environment, "__dict__", {})}
    plain = (str, int, float, tuple, type(None))
    return {name: repr(value) for name, value in held.items() if isinstance(value, plain)}


def environment_classes(trainer: Any) -> list[type]:
    """Return the classes of a trainer's environments whose `reset` can be watched."""
    pools: Iterable[Any] = (getattr(trainer, "_environment_pool", None) or {}).values()
    held = [*(getattr(trainer, "environments", None) or ()), *(e for pool in pools for e in pool)]
    kinds = dict.fromkeys(map(type, held))
    return [k for k in kinds if inspect.isfunction(inspect.getattr_static(k, "reset", None))]


def opened(trainer: Any, rows: Sequence[dict[str, Any]], resets: Sequence[Reset]) -> list[Any]:
    """Return the rows with the prompts that the policy reads; without one where no reset was seen."""
    if getattr(trainer, "environments", None) is None:
        return [*rows]
    found = []
    for number, row in enumerate(rows):
        prompt = row.get("prompt", [{"role": "user", "content": ""}])
        new = {name: value for name, value in row.items() if name != "prompt"}
        new[UNOPENED] = prompt
        if getattr(trainer, "_multi_environment", False):
            tools = trainer._env_tools[row["environment"]]
            new[ROW_TOOLS] = [get_json_schema(t) if callable(t) else t for t in tools]
        if number < len(resets):
            new["prompt"] = _added(prompt, resets[number].said)
        found.append(new)
    return found


def _added(prompt: Any, said: Any) -> Any:
    """Return a conversation whose last message goes on with what is said."""
    if said is None:
        return prompt
    content = prompt[-1]["content"]
    if isinstance(said, list) or isinstance(content, list):
        parts = [
            [{"type": "text", "text": e}] if isinstance(e, str) else e for e in (content, said)
        ]
        content, said = parts
    return [*prompt[:-1], {**prompt[-1], "content": content + said}]


def theirs(rows: Sequence[dict[str, Any]], resets: Sequence[Reset]) -> list[bool]:
    """Return whether, when all are reset, each row's environment is as its own reset left it in what tells rows apart.

    That is an attribute which is the same wherever a row is, and not the same for all rows.
    """
    keys, telling = [*map(str, rows)], []
    for name in {name for each in resets for name in each.state}:
        pairs = {(key, each.state.get(name)) for key, each in zip(keys, resets, strict=True)}
        if len(pairs) == len({*keys}) and len({value for _, value in pairs}) > 1:
            telling.append(name)
    now = [_plain(each.environment) for each in resets]
    return [
        all(held.get(name) == each.state.get(name) for name in telling)
        for held, each in zip(now, resets, strict=True)
    ]


# --- batches as ms-swift makes them: a list of micro-batches, each the model's inputs and beside them what its loss reads.
# A row is its prompt and its completion in one, padded on the right; what the loss reads is of the last tokens of all rows

PLACES = "rlvr_debug_places"  # of each completion's tokens among the last ones, -1 for padding
_OF_TOKENS = {
    "advantages": "advantages",
    "old_per_token_logps": "old_per_token_logps",
    "ref_per_token_logps": "ref_per_token_logps",
    "rollout_per_token_logps": "sampling_per_token_logps",
    "completion_mask": "tool_mask",
}


def columns(micro: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a micro-batch with TRL's columns, as which it may be made already."""
    if "grpo_batch" not in micro:
        return micro
    ids, real = (micro["model_inputs"][name] for name in ("input_ids", "attention_mask"))
    told = micro["grpo_batch"]
    counted = told.completion_mask.bool()
    before = ids.shape[1] - counted.shape[1]
    first, ends = before + counted.int().argmax(1, keepdim=True), real.sum(1, keepdim=True)
    within = first + torch.arange(int((ends - first).max()), device=ids.device)
    ahead = torch.arange(-int(first.max()), 0, device=ids.device) + first
    places = (within - before).where(within < ends, -1)
    found = {
        "prompt_ids": ids.gather(1, ahead.clamp(min=0)),
        "prompt_mask": (ahead >= 0).long(),
        "completion_ids": ids.gather(1, within.clamp(max=ids.shape[1] - 1)),
        "completion_mask": (within < ends).long(),
        PLACES: places,
    }
    for name, called in _OF_TOKENS.items():
        values = getattr(told, name)
        found[called] = None if values is None else placed(values, places)
    return {**found, **{name: value for name, value in micro.items() if isinstance(value, Tensor)}}


def placed(values: Tensor, places: Tensor | None) -> Tensor:
    """Return values of the last tokens as those of completions, 0 for padding."""
    if places is None:
        return values
    return values.gather(1, places.clamp(min=0)) * (places >= 0).to(values.dtype)


def joined(micros: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return micro-batches with TRL's columns as one."""
    if len(micros) == 1:
        return micros[0]
    return {
        name: stacked([micro[name] for micro in micros], name)
        for name, value in micros[0].items()
        if isinstance(value, Tensor) and value.dim()
    }


def numbered(micros: list[dict[str, Any]], first: int) -> Mapping[str, Any]:
    """Return what a generation made as one batch. Each part is given its rows' numbers from `first` on, which travel through the shuffle."""
    told = []
    for micro in micros:
        ids = columns(micro)["prompt_ids"]
        micro[ROW] = torch.arange(first, first + len(ids), device=ids.device)
        told.append(columns(micro))
        first += len(ids)
    return joined(told)


def owners_of(trainer: Any, name: str) -> list[type]:
    """Return the classes that define a method of a trainer, the release's own last."""
    owners = [kind for kind in type(trainer).__mro__ if name in vars(kind)]
    own = [kind for kind in owners if not kind.__module__.startswith("transformers.")]
    return own or owners


def callable_parts(model: Any) -> list[Any]:
    """Return the modules that a trainer may call for a pass of the policy: the model, without its adapters, without its head."""
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    inner = getattr(whole, getattr(whole, "base_model_prefix", "") or "", None)
    parts = [model] if whole is model else [model, whole]
    return parts if inner is None or inner is whole else [*parts, inner]
