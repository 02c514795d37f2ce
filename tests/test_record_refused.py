"""A folder that is no record, or one that does not fit: one line that says what is wrong, and nothing is run."""

import json
import math
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr_debug.cli import main
from rlvr_debug.files import read_yaml
from rlvr_debug.replay.record import Call, Generation, Record
from rlvr_debug.replay.store import VERSION, check_folder, read_record, write_record
from tests.in_process import called
from tests.record_mutations import mutate
from tests.small_record import SHAPE, bare_record, change, line, nothing, shares

CASES = read_yaml(Path(__file__).with_suffix(".yaml"))


def put(told: Any, path: list[Any], value: Any) -> None:
    """Put the value there: at the end of a list where the path ends with `+`; null takes what is there away."""
    *way, last = path
    for key in way:
        told = told[key]
    if last == "+":
        told.append(value)
    elif value is None:
        del told[last]
    else:
        told[last] = value


@pytest.mark.parametrize(("path", "value", "said"), CASES)
def test_what_does_not_fit_is_named_with_its_key(
    path: list[Any], value: Any, said: str, folder: Path
) -> None:
    change(folder, lambda told: put(told, path, value))
    assert said in line(folder)


@pytest.mark.parametrize("version", [0, VERSION + 1])
def test_a_record_of_another_version_is_refused(version: int, folder: Path) -> None:
    change(folder, lambda told: told.update(version=version))
    assert f"version is {version}, expected 1 or {VERSION}" in line(folder)


def test_a_logprob_that_is_null_is_named_with_its_key(folder: Path) -> None:
    def null(told: Any) -> None:
        told["generations"][0]["calls"][0]["logprobs"][0][0] = None

    change(folder, null)
    said = "key 'generations.0.calls.0.logprobs.0' is null somewhere, expected numbers"
    assert said in line(folder)


@pytest.mark.parametrize(
    ("name", "to", "said"),
    [
        (
            "generations/0/batch/old",
            lambda x: _put(x, math.nan),
            "NaN where the loss counts a token",
        ),
        ("updates/1/micro_batches/0/logprobs", lambda x: _put(x, math.nan), "NaN where the loss"),
        ("generations/0/batch/old", lambda x: x[:, :-1], "is of shape [4, 5], expected [4, 6]"),
        ("generations/0/batch/completion_ids", lambda x: _put(x, -1), "is -1 somewhere, expected"),
        (
            "generations/0/batch/completion_mask",
            lambda x: x * 2,
            "is 2 somewhere, expected from 0 to 1",
        ),
        ("generations/0/rewards", lambda x: x[:, :1], "is of shape [4, 1], expected [4, 2]"),
        (
            "generations/1/rewards",
            lambda x: x.long(),
            "is of type torch.int64, expected a floating",
        ),
        ("weights/2/model.norm.weight", lambda x: x[:-1], "is of shape [15], expected [16]"),
        ("updates/0/gradients/model.norm.weight", lambda x: x[None], "expected [16]"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named_with_what_is_expected(
    name: str, to: Callable[[Tensor], Tensor], said: str, folder: Path
) -> None:
    tensors = load_file(folder / "tensors.safetensors")
    tensors[name] = to(tensors[name]).contiguous()
    (folder / "tensors.safetensors").unlink()
    save_file(tensors, folder / "tensors.safetensors")
    found = line(folder)
    assert found.startswith("record.json: key '")
    assert said in found


def _put(tensor: Tensor, value: float) -> Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[0] = value
    return tensor


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint16])
def test_token_ids_may_be_of_any_integer_type(dtype: torch.dtype, folder: Path) -> None:
    tensors = load_file(folder / "tensors.safetensors")
    whole = {n: t.to(dtype) for n, t in tensors.items() if not t.is_floating_point()}
    (folder / "tensors.safetensors").unlink()
    save_file(tensors | whole, folder / "tensors.safetensors")
    assert check_folder(folder)["first"] is None


@pytest.mark.parametrize("name", ["record.json", "tensors.safetensors"])
def test_a_file_that_is_missing_or_cut_is_one_line_with_its_name(name: str, folder: Path) -> None:
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    assert line(folder).startswith(f"{name}: ")
    (folder / name).write_bytes(content[: len(content) // 2])
    assert line(folder).startswith(f"{name}: ")


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    assert line(tmp_path / "none").endswith(
        "none: no such folder, expected a folder of a record, with record.json"
    )


def test_a_tokenizer_without_its_vocabulary_is_refused(folder: Path) -> None:
    """transformers would make one with an empty vocabulary, and every prompt would deviate."""
    config = (folder / "tokenizer" / "tokenizer_config.json").read_bytes()
    (folder / "tokenizer").unlink()
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer_config.json").write_bytes(config)
    assert line(folder).startswith("tokenizer: found none of")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("hidden_size", 32, "expected [549, 32]"),
        ("num_hidden_layers", 10**9, "num_hidden_layers is 1000000000, expected at most"),
        ("vocab_size", 10**15, "expected"),
        ("model_type", "none", "expected a model that transformers can build"),
        ("num_attention_heads", 3, "expected"),
    ],
)
def test_another_architecture_is_refused_before_it_is_made(
    key: str, value: Any, said: str, folder: Path
) -> None:
    def changed(told: dict[str, Any]) -> None:
        del told["layer_types"]  # its length is another way to be refused
        told[key] = value

    change(folder, changed, "model/config.json")
    assert said in line(folder)


def test_tied_weights_may_be_given_under_both_names_if_they_are_the_same(
    record: Record, tmp_path: Path
) -> None:
    config = Qwen2Config(vocab_size=9, tie_word_embeddings=True, **SHAPE)
    model = Qwen2ForCausalLM(config)
    named = dict(model.named_parameters())
    both = {**named, "lm_head.weight": named["model.embed_tokens.weight"]}
    call = Call([[1, 2]], [[3, 4, 5]], [[-1.0, -2.0, -3.0]])
    tied = bare_record(
        build=lambda: Qwen2ForCausalLM(config),
        weights=[both],
        trainable=tuple(named),
        generations=[Generation(calls=[call])],
    )
    write_record(tied, tmp_path / "same")
    found = shares(check_folder(tmp_path / "same")["segments"])
    assert found["sampler"][0] == "deviates"  # its log-probabilities are made up: it was computed
    tied.weights = [{**named, "lm_head.weight": torch.zeros(9, 16)}]
    write_record(tied, tmp_path / "other")
    assert "key 'weights.0.lm_head.weight' is another tensor, expected that of" in line(
        tmp_path / "other"
    )


def test_an_adapter_without_its_other_half_is_refused(tmp_path: Path) -> None:
    module = "base_model.model.model.layers.0.mlp"
    weights = {
        f"{module}.base_layer.weight": torch.zeros(4, 4),
        f"{module}.lora_A.default.weight": torch.zeros(2, 4),
        f"{module}.lora_B.default.weight": torch.zeros(4, 2),
    }
    adapter = bare_record(weights=[weights], scalings={module: {"default": 2.0}})
    write_record(adapter, tmp_path / "whole")
    assert read_record(tmp_path / "whole").weights[0].keys() == weights.keys()
    del weights[f"{module}.lora_B.default.weight"]
    write_record(adapter, tmp_path / "half")
    assert "key 'weights.0' is with adapters that do not fit" in line(tmp_path / "half")


class Fires:
    """Writes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def test_nothing_of_a_record_is_unpickled_or_run(folder: Path, tmp_path: Path) -> None:
    fired = tmp_path / "fired"
    (folder / "tensors.safetensors").unlink()
    (folder / "tensors.safetensors").write_bytes(pickle.dumps(Fires(fired)))
    assert line(folder).startswith("tensors.safetensors: SafetensorError")
    code = f"import os\nos.mkdir({str(fired)!r})\n"
    (folder / "model" / "evil.py").write_text(code, encoding="utf-8")
    (folder / "model" / "pytorch_model.bin").write_bytes(pickle.dumps(Fires(fired)))
    remote = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    names = {"model_type": "evil", "architectures": ["Evil"], "auto_map": remote}
    change(folder, lambda told: told.update(names), "model/config.json")
    tokenizer = (folder / "tokenizer").resolve()
    (folder / "tokenizer").unlink()
    (folder / "tokenizer").mkdir()
    for file in tokenizer.iterdir():
        (folder / "tokenizer" / file.name).write_bytes(file.read_bytes())
    (folder / "tokenizer" / "evil.py").write_text(code, encoding="utf-8")
    evil = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    change(folder, lambda told: told.update(evil), "tokenizer/tokenizer_config.json")
    (folder / "tensors.safetensors").unlink()
    (folder / "tensors.safetensors").symlink_to(tmp_path / "whole")
    save_file({"x": torch.zeros(1)}, tmp_path / "whole")
    assert line(folder)
    change(folder, nothing)
    assert line(folder)
    assert not fired.exists()


_MANY = (pytest.param(seed, marks=pytest.mark.heavy) for seed in range(40, 500))


@pytest.mark.parametrize("seed", [*range(40), *_MANY])
def test_a_record_with_one_thing_wrong_is_one_line_or_is_checked(
    seed: int, record_folder: Path, tmp_path: Path
) -> None:
    said = mutate(record_folder, tmp_path / "record", seed)
    done = called(main, "rlvr-debug", "check", "--json", "--record", str(tmp_path / "record"))
    if done.returncode == 2:
        assert done.stdout == "", said
        [found] = done.stderr.splitlines()
        assert found.startswith(f"error: {tmp_path}"), said
    else:
        answer: Mapping[str, Any] = json.loads(done.stdout)
        assert done.returncode == (3 if answer["first"] else 0), said
        assert done.stderr == "", said
