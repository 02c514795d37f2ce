"""A record's model and tokenizer as files, read by transformers' own classes: no code, no pickle and no network."""

import copy
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlvr_debug.errors import InputError, reason, typed
from rlvr_debug.files import read_json, write_json
from rlvr_debug.replay.finding import NotSeen

_OWN = {"trust_remote_code": False}
_FILES = {**_OWN, "local_files_only": True}


@dataclass(frozen=True)
class Architecture:
    """What a model's configuration says. tied: of names, the name each stands for. vocabulary: how many tokens it knows."""

    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str]
    vocabulary: int


# --- writing


def write_model(build: Callable[[], Any], folder: Path) -> str:
    """Write config.json of the model that `build` returns; return what keeps it from being written, "" for nothing."""
    import transformers

    try:
        with torch.random.fork_rng(), torch.device("meta"):
            module = build()
    except NotSeen as why:
        return str(why)
    kind, config = type(module).__name__, copy.deepcopy(getattr(module, "config", None))
    if getattr(transformers, kind, None) is not type(module) or config is None:
        return f"the model's class {kind} is none of transformers', and the record has no model"
    told = json.loads(config.to_json_string())
    told["architectures"] = [kind]
    told.pop("auto_map", None)
    write_json(folder / "config.json", told)
    return ""


# --- reading


def read_tokenizer(folder: Path) -> Any:
    """Return the tokenizer, or the processor, None where there is none. Raise InputError for one that cannot be read."""
    if not folder.is_dir():
        return None
    from transformers import AutoProcessor, AutoTokenizer

    names = ("processor_config.json", "preprocessor_config.json")
    kind = AutoProcessor if any((folder / name).is_file() for name in names) else AutoTokenizer
    expected = "expected what a tokenizer's save_pretrained writes"
    try:
        with _quiet():
            found = kind.from_pretrained(folder, **_FILES)
    except Exception as error:  # whatever a tokenizer's class says of its files
        raise InputError(f"{folder}: {reason(error)}, {expected}") from None
    # without a vocabulary, it would be made with an empty one
    files = getattr(getattr(found, "tokenizer", found), "vocab_files_names", {}).values()
    if files and not any((folder / name).is_file() for name in files):
        raise InputError(f"{folder}: found none of {', '.join(sorted(files))}, {expected}")
    return found


def read_model(folder: Path, layers: int) -> tuple[Callable[[], Any], Architecture | None]:
    """Return what builds the module, and what it is; at most `layers`, 0 where none is needed. Raise InputError for a bad configuration."""
    path = folder / "config.json"
    if not layers or not path.is_file():
        return no_model, None
    told = read_json(path)
    if not isinstance(told, dict):
        raise InputError(
            f"{path}: found {typed(told)}, expected a model's configuration, a JSON object"
        )
    for name, count in _layers(told):
        if count > layers:  # it would be made for hours
            said = f"{name} is {count}, expected at most {layers}, the number of weights"
            raise InputError(f"{path}: {said}")
    with _refused(path):
        module = _built(path, torch.device("meta"))
        shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
        own = {id(p): name for name, p in module.named_parameters()}
        every = module.named_parameters(remove_duplicate=False)
        tied = {name: own[id(p)] for name, p in every if own[id(p)] != name}
        known = Architecture(shapes, tied, module.get_input_embeddings().num_embeddings)

    def tried() -> Any:
        """Return the module, which was seen to read two tokens."""
        with _refused(path), torch.no_grad():
            module = _built(path, torch.device("cpu")).eval()
            module(input_ids=torch.zeros(1, 2, dtype=torch.long), use_cache=False)
        return module

    return tried, known


def _layers(told: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the numbers of layers that a configuration names, under whatever name its architecture has for them."""
    for name, value in told.items():
        if isinstance(value, dict):
            yield from _layers(value)
        elif isinstance(value, int) and re.fullmatch(r"(n|num)_(\w+_)?layers?", name):
            yield name, value


def no_model() -> Any:
    raise NotSeen("the record has no model")


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        with _quiet():
            yield
    except Exception as error:  # whatever an architecture says of its numbers
        expected = "expected a model that transformers can build"
        raise InputError(f"{path}: {reason(error)}, {expected}") from None


def _built(path: Path, device: torch.device) -> Any:
    import transformers

    config = transformers.AutoConfig.from_pretrained(path.parent, **_FILES)
    [name] = config.architectures or [""]
    kind: Any = getattr(transformers, name, None)
    # its name before transformers 4.56
    how: dict[str, Any] = {"dtype" if hasattr(config, "dtype") else "torch_dtype": torch.float32}
    causal = transformers.AutoModelForCausalLM._model_mapping.get(type(config), None)
    compute_plainly(config, kind if _is_model(kind) else causal)
    with device:
        if _is_model(kind):
            return kind._from_config(config, **how)
        return transformers.AutoModelForCausalLM.from_config(config, **how, **_OWN)


def compute_plainly(config: Any, kind: Any) -> None:
    """Have a configuration compute in float64 too, without kernels that cannot. kind: the class of its model."""
    config._attn_implementation = "sdpa" if getattr(kind, "_supports_sdpa", False) else "eager"
    if hasattr(type(config), "_experts_implementation"):
        config._experts_implementation = "eager"


def _is_model(kind: Any) -> bool:
    import transformers

    return isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from warning of what is no concern of a check."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
