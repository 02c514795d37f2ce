"""Records with one thing wrong: a key, a value, a tensor or a byte, drawn from a seed."""

import json
import math
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 7, 2**40, 10**400, 0.5, -1.5, 1e308, float("nan")),
    *(float("inf"), "", "x", "Infinity", "\ud800", "weights/0", [], {}, [1], [[1]], [None]),
    *([-1], {"x": 1}, {"role": 1}, [{"role": "user"}], [[0.5]], ["x"]),
)
_BY_FILE = ("record.json", "tensors.safetensors", "model/config.json", "tokenizer/tokenizer.json")


def mutate(source: Path, folder: Path, seed: int) -> str:
    """Copy a record, with one thing wrong; return what that is."""
    shutil.copytree(source, folder)
    drawn = random.Random(seed)
    kinds: tuple[Callable[[Path, random.Random], str], ...] = (
        *(_key_dropped, _value_changed, _value_changed, _item_dropped, _item_twice),
        *(_tensor_changed, _tensor_changed, _tensor_changed, _other_tensor, _bytes_changed),
        *(_file_cut, _file_lost, _setting_of_the_model),
    )
    return drawn.choice(kinds)(folder, drawn)


# --- record.json


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value below this one."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, each in items:
        yield (*path, name)
        if isinstance(each, dict | list):
            yield from _places(each, (*path, name))


def _drawn_place(told: Any, drawn: random.Random, *, depth: int) -> tuple[Any, ...]:
    """Draw a place, each depth with the same chance: else nearly all were ids and names of weights."""
    places: dict[int, list[tuple[Any, ...]]] = {}
    for path in _places(told):
        if len(path) >= depth:
            places.setdefault(len(path), []).append(path)
    return drawn.choice(places[drawn.choice(sorted(places))])


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        value = value[part]
    return value


def _written(folder: Path, change: Callable[[Any], str]) -> str:
    """Change record.json, or the configuration."""
    path = folder / "record.json"
    told = json.loads(path.read_text(encoding="utf-8"))
    said = change(told)
    path.write_text(json.dumps(told), encoding="utf-8")
    return said


def _key_dropped(folder: Path, drawn: random.Random) -> str:
    def change(told: Any) -> str:
        path = _drawn_place(told, drawn, depth=1)
        del _at(told, path[:-1])[path[-1]]
        return f"{path} is dropped"

    return _written(folder, change)


def _value_changed(folder: Path, drawn: random.Random) -> str:
    def change(told: Any) -> str:
        path, value = _drawn_place(told, drawn, depth=1), drawn.choice(_VALUES)
        _at(told, path[:-1])[path[-1]] = value
        return f"{path} is {value!r}"

    return _written(folder, change)


def _item_dropped(folder: Path, drawn: random.Random) -> str:
    return _written(folder, lambda told: _of_a_list(told, drawn, 0))


def _item_twice(folder: Path, drawn: random.Random) -> str:
    return _written(folder, lambda told: _of_a_list(told, drawn, 2))


def _of_a_list(told: Any, drawn: random.Random, times: int) -> str:
    lists = [path for path in _places(told) if isinstance(_at(told, path), list)]
    path = drawn.choice([each for each in lists if _at(told, each)])
    items = _at(told, path)
    place = drawn.randrange(len(items))
    items[place : place + 1] = [items[place]] * times
    return f"item {place} of {path} stands {times} times"


def _other_tensor(folder: Path, drawn: random.Random) -> str:
    """Let a tensor's name be that of another one."""

    def change(told: Any) -> str:
        names = [path for path in _places(told) if "/" in str(_at(told, path))]
        names = [path for path in names if isinstance(_at(told, path), str)]
        path, other = drawn.choice(names), drawn.choice(names)
        _at(told, path[:-1])[path[-1]] = _at(told, other)
        return f"{path} is the tensor of {other}"

    return _written(folder, change)


# --- tensors


def _tensor_changed(folder: Path, drawn: random.Random) -> str:
    path = folder / "tensors.safetensors"
    tensors = load_file(path)
    large = [
        name for name in tensors if name.startswith(("weights", "updates")) and "/micro" not in name
    ]
    small = [name for name in tensors if name not in large]
    name = drawn.choice(drawn.choice((large, small)))
    tensor = tensors[name]
    hows: dict[str, Callable[[Tensor], Tensor | None]] = {
        "lost": lambda _: None,
        "of another shape": lambda x: torch.cat([x.flatten(), x.flatten()[:1]]),
        "without its last row": lambda x: x[:-1] if x.dim() else x[None],
        "without its last column": lambda x: x[..., :-1] if x.dim() else x[None],
        "with an axis more": lambda x: x[None],
        "one number": lambda x: x.flatten()[0],
        "empty": lambda x: x.flatten()[:0],
        "transposed": lambda x: x.T.contiguous() if x.dim() == 2 else x,
        "of integers": lambda x: x.to(torch.int32),
        "of small integers": lambda x: x.to(torch.uint8),
        "of bools": lambda x: x.bool(),
        "of float16": lambda x: x.half(),
        "of float64": lambda x: x.double(),
        "complex": lambda x: x.to(torch.complex64),
        "NaN in one place": lambda x: _put(x, float("nan")),
        "infinite in one place": lambda x: _put(x, float("inf")),
        "-1 in one place": lambda x: _put(x, -1),
        "a million in one place": lambda x: _put(x, 10**6),
        "NaN everywhere": lambda x: torch.full_like(x.double(), float("nan")),
        "0 everywhere": torch.zeros_like,
        "1e30 everywhere": lambda x: torch.full_like(x.double(), 1e30),
    }
    how = drawn.choice(list(hows))
    changed = hows[how](tensor)
    del tensors[name]
    save_file(tensors | ({} if changed is None else {name: changed.contiguous()}), path)
    return f"tensor {name} is {how}"


def _put(tensor: Tensor, value: float) -> Tensor:
    whole = math.isfinite(value) and not tensor.dtype.is_complex
    found = tensor.clone() if tensor.is_floating_point() or whole else tensor.double()
    found.view(-1)[0] = value
    return found


# --- files


def _file(folder: Path, drawn: random.Random) -> Path:
    return folder / drawn.choice(_BY_FILE)


def _bytes_changed(folder: Path, drawn: random.Random) -> str:
    path = _file(folder, drawn)
    content = bytearray(path.read_bytes())
    place = drawn.randrange(min(len(content), drawn.choice((64, 4096, len(content)))))
    content[place] = drawn.randrange(256)
    path.write_bytes(content)
    return f"byte {place} of {path.name} is {content[place]}"


def _file_cut(folder: Path, drawn: random.Random) -> str:
    path = _file(folder, drawn)
    content = path.read_bytes()
    place = drawn.randrange(len(content))
    path.write_bytes(content[:place])
    return f"{path.name} ends after {place} bytes"


def _file_lost(folder: Path, drawn: random.Random) -> str:
    path = _file(folder, drawn)
    path.unlink()
    if drawn.random() < 0.5:
        path.mkdir()
    return f"{path.name} is lost"


def _setting_of_the_model(folder: Path, drawn: random.Random) -> str:
    path = folder / "model" / "config.json"
    told = json.loads(path.read_text(encoding="utf-8"))
    name, value = drawn.choice(list(told)), drawn.choice(_VALUES)
    told[name] = value
    path.write_text(json.dumps(told), encoding="utf-8")
    return f"{name} of the configuration is {value!r}"
