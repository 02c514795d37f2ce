"""A record as a folder: what is written is read again, what is missing is not seen, what is wrong is one line."""

from __future__ import annotations

import ast
import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml
from rlvr_debug.replay import record as classes
from rlvr_debug.replay.answer import answer_of
from rlvr_debug.replay.check import check
from rlvr_debug.replay.finding import NOT_SEEN
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.segments.gradient import norm
from rlvr_debug.replay.settings import Sampling, Settings
from rlvr_debug.replay.store import VERSION, check_folder, read_record, write_record
from tests.in_process import called
from tests.record_mutations import mutate
from tests.small_record import small_record

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def record() -> Record:
    torch.set_num_threads(1)
    return small_record()


@pytest.fixture(scope="module")
def written(record: Record, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record's folder, not to be changed."""
    folder = tmp_path_factory.mktemp("record") / "small"
    write_record(record, folder)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A record's folder, to be changed; its tokenizer and its tensors are links."""
    found = tmp_path / "small"
    (found / "model").mkdir(parents=True)
    (found / "tokenizer").symlink_to(written / "tokenizer")
    (found / "tensors.safetensors").symlink_to(written / "tensors.safetensors")
    for name in ("record.json", "model/config.json"):
        (found / name).write_bytes((written / name).read_bytes())
    return found


def change(folder: Path, how: Change, name: str = "record.json") -> None:
    told = json.loads((folder / name).read_text(encoding="utf-8"))
    how(told)
    (folder / name).write_text(json.dumps(told), encoding="utf-8")


def line(folder: Path) -> str:
    """Return the line that a bad record is refused with, without the folder's path."""
    done = called(main, "rlvr-debug", "check", "--record", str(folder))
    assert (done.returncode, done.stdout) == (2, "")
    [said] = done.stderr.splitlines()
    return str(said).removeprefix("error: ").replace(f"{folder}/", "")


def shares(segments: Any) -> dict[str, tuple[str, float]]:
    return {each["segment"]: (each["status"], each["share"]) for each in segments}


# --- what is written is read again


def test_a_record_that_is_read_again_has_the_same_findings(record: Record, written: Path) -> None:
    before, after = answer_of(record, check(record)), check_folder(written)
    assert before["first"] is None
    assert shares(after["segments"]) == shares(before["segments"])
    assert {name: after[name] for name in before} == before | {"segments": after["segments"]}


@pytest.mark.slow
def test_the_record_of_a_script_says_what_the_script_s_check_said(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT, encoding="utf-8")
    saved = tmp_path / "record"
    lived = rlvr_debug("check", "--json", "--save", str(saved), str(script))
    read = rlvr_debug("check", "--json", "--record", str(saved))
    assert (lived.returncode, read.returncode) == (3, 3), lived.stderr
    live, again = json.loads(lived.stdout), json.loads(read.stdout)
    assert live["first"] == "rewards"
    for one, other in zip(live["segments"], again["segments"], strict=True):
        # sums over tensors are made in the order of a set
        assert other["share"] == pytest.approx(one["share"], rel=1e-9), one["segment"]
        assert other | {"seconds": 0, "share": 0, "deviation": 0} == one | {
            "seconds": 0,
            "share": 0,
            "deviation": 0,
        }
    assert again["tokens"] == live["tokens"]


# a reward function that draws from a hat, columns that JSON has no place for, and one function that knows no reward
_SCRIPT = f"""
import datetime, random
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
model = {str(ROOT / "models" / "tiny")!r}
def drawn(completions, **_):
    return [random.random() for _ in completions]
def none(completions, **_):
    return [None for _ in completions]
rows = [dict(prompt=f"What is {{n}}?", day=datetime.date(2025, 1, n + 1)) for n in range(8)]
config = GRPOConfig(
    output_dir={"{}"!r}, per_device_train_batch_size=4, num_generations=4, max_completion_length=8, max_steps=3,
    beta=0.04, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, bf16=False, learning_rate=1e-3,
)
GRPOTrainer(model, [drawn, none], config, Dataset.from_list(rows)).train()
"""


def rlvr_debug(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "rlvr_debug.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=600,
    )


def test_what_stands_in_a_record_several_times_is_kept_once(tmp_path: Path) -> None:
    """Frozen weights are in every snapshot, and a first policy is often the reference too."""
    frozen = {f"w{n}": torch.full((4,), float(n)) for n in range(3)}
    snapshots = [{**frozen, "last": torch.full((4,), 10.0 + n)} for n in range(3)]
    bare = bare_record(weights=snapshots, trainable=("last",), reference=dict(snapshots[0]))
    write_record(bare, tmp_path / "record")
    kept = load_file(tmp_path / "record" / "tensors.safetensors")
    assert sorted(float(tensor[0]) for tensor in kept.values()) == [0, 1, 2, 10, 11, 12]
    again = read_record(tmp_path / "record")
    assert again.weights[2]["w1"] is again.weights[0]["w1"]
    assert again.reference is not None
    assert again.reference["last"] is again.weights[0]["last"]


def bare_record(**told: Any) -> Record:
    """A record without a model, and with nothing but what is told."""
    settings = Settings(2, Sampling(), 4)
    given = {"trainer": "bare", "settings": settings, "tokenizer": None, "tools": None}
    return Record(**{**given, "build": lambda: torch.nn.Linear(1, 1), **told})


def test_the_part_of_a_large_model_that_is_kept_is_read_again(
    record: Record, tmp_path: Path
) -> None:
    """Of it a few numbers of each tensor stand for all, and two rows for four."""
    places = {name: torch.tensor([0, 3, 7]) for name in record.trainable}
    part = replace(record, elements=places, rows=2)

    def kept(tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        return {name: part.part(name, tensor) for name, tensor in (tensors or {}).items()}

    def state(told: Mapping[str, Mapping[str, Tensor]] | None) -> dict[str, dict[str, Tensor]]:
        return {
            name: {k: t if t.dim() == 0 else part.part(name, t) for k, t in each.items()}
            for name, each in (told or {}).items()
        }

    part.updates = [
        replace(
            update,
            gradients=kept(update.gradients),
            clipped=kept(update.clipped),
            state=state(update.state),
            state_after=state(update.state_after),
            norms=(norm(update.gradients or {}), norm(update.clipped or {})),
        )
        for update in record.updates
    ]
    write_record(part, tmp_path / "record")
    live = answer_of(part, check(part))
    assert live["first"] is None, live["answer"]
    assert shares(check_folder(tmp_path / "record")["segments"]) == shares(live["segments"])


def test_numbers_that_json_has_not_are_read_as_they_were(record: Record, tmp_path: Path) -> None:
    """A reward function says None, and a sampler may have drawn what its settings exclude."""
    [generation, _] = record.generations
    call, reward_call = generation.calls[0], generation.reward_calls[0]
    excluded = [[-math.inf, *call.logprobs[0][1:]], *call.logprobs[1:]]
    changed = replace(
        generation,
        calls=[replace(call, logprobs=excluded)],
        reward_calls=[replace(reward_call, returned=[math.nan, 1.0, math.inf, -math.inf])],
    )
    write_record(replace(record, generations=[changed]), tmp_path / "record")
    told = json.loads((tmp_path / "record" / "record.json").read_text(encoding="utf-8"))
    assert told["generations"][0]["reward_calls"][0]["returned"] == [
        *(None, 1.0, "Infinity", "-Infinity")
    ]
    change(tmp_path / "record", lambda told: told.update(updates=[]))
    [again] = read_record(tmp_path / "record").generations
    assert again.calls[0].logprobs == excluded
    assert math.isnan(again.reward_calls[0].returned[0])
    assert again.reward_calls[0].returned[2:] == [math.inf, -math.inf]


def test_what_json_has_no_place_for_is_left_out_and_said(record: Record, tmp_path: Path) -> None:
    [generation, *_] = record.generations
    rows = [{**row, "image": object(), "size": (1, 2)} for row in generation.rows]
    columns: dict[str, Any] = {"image": [object()] * 4, "answer": ["0"] * 4, "text": "no list"}
    calls = [replace(call, columns=columns) for call in generation.reward_calls]
    changed = replace(generation, rows=rows, reward_calls=calls)
    write_record(replace(record, generations=[changed], updates=[]), tmp_path / "record")
    again = read_record(tmp_path / "record")
    [read] = again.generations
    assert set(read.rows[0]) == {"prompt", "answer", "size"}
    assert set(read.reward_calls[0].columns) == {"answer"}
    assert "the column image is left out: JSON has no place for it" in again.notes


def test_tools_are_kept_as_their_schemas(record: Record, tmp_path: Path) -> None:
    def multiply(a: int, b: int) -> int:
        """Multiply two numbers.

        Args:
            a: one
            b: the other
        """
        return a * b

    write_record(replace(record, tools=[multiply]), tmp_path / "record")
    [tool] = read_record(tmp_path / "record").tools or []
    assert tool["function"]["name"] == "multiply"
    assert set(tool["function"]["parameters"]["properties"]) == {"a", "b"}


def test_a_folder_that_exists_is_not_written_to(record: Record, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="exists, expected a new folder"):
        write_record(record, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_record_that_cannot_be_written_whole_leaves_nothing(
    record: Record, tmp_path: Path
) -> None:
    class Full:
        def save_pretrained(self, folder: Path) -> None:
            folder.mkdir()
            (folder / "half").write_text("half", encoding="utf-8")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_record(replace(record, tokenizer=Full()), tmp_path / "record")
    assert list(tmp_path.iterdir()) == []


def test_a_model_of_no_known_class_is_left_out_and_said(tmp_path: Path) -> None:
    write_record(bare_record(), tmp_path / "record")
    assert not (tmp_path / "record" / "model").exists()
    [note] = read_record(tmp_path / "record").notes
    assert note == "the model's class Linear is none of transformers', and the record has no model"


def test_writing_a_record_draws_no_random_number(record: Record, tmp_path: Path) -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    write_record(record, tmp_path / "record")
    assert torch.equal(torch.random.get_rng_state(), before)


# --- the format


@pytest.mark.parametrize(
    ("name", "kind", "elsewhere"),
    [
        ("", Record, {"version"} ^ {"tokenizer", "build"}),
        ("settings", Settings, set()),
        ("sampling", Sampling, set()),
        ("generation", classes.Generation, set()),
        ("call", classes.Call, set()),
        ("reward_call", classes.RewardCall, set()),
        ("batch", classes.Batch, set()),
        ("forward", classes.Forward, set()),
        ("micro_batch", classes.MicroBatch, set()),
        ("update", classes.Update, set()),
        ("group", classes.ParameterGroup, set()),
    ],
)
def test_the_schema_has_the_fields_of_the_record_and_no_others(
    name: str, kind: Any, elsewhere: set[str]
) -> None:
    schema = read_yaml(ROOT / "src" / "rlvr_debug" / "replay" / "record.schema.yaml")
    properties = (schema["$defs"][name] if name else schema)["properties"]
    assert set(properties) ^ {field.name for field in fields(kind)} == elsewhere


def test_a_settings_default_keeps_to_the_schema(tmp_path: Path) -> None:
    write_record(bare_record(), tmp_path / "record")
    assert read_record(tmp_path / "record").settings == Settings(2, Sampling(), 4)


# --- what is missing is not seen


def only(told: dict[str, Any], *names: str) -> None:
    for name in set(told) - {"version", "trainer", "settings", *names}:
        del told[name]


def rewards_and_advantages(told: dict[str, Any]) -> None:
    only(told, "generations")
    told["generations"] = [
        {"rewards": each["rewards"], "batch": {"advantages": each["batch"]["advantages"]}}
        for each in told["generations"]
    ]


def tokens_and_logprobs(told: dict[str, Any]) -> None:
    only(told, "generations", "updates", "weights", "trainable")
    tokens = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "loss_mask")
    told["generations"] = [
        {"weights": each["weights"], "batch": {name: each["batch"][name] for name in tokens}}
        for each in told["generations"]
    ]
    kept = ("generation", "weights", "forward", "logprobs")
    for update in told["updates"]:
        update["micro_batches"] = [
            {name: micro[name] for name in kept}
            | {"given": {name: micro["given"][name] for name in tokens}}
            for micro in update["micro_batches"]
        ]
        for name in set(update) - {"micro_batches", "before", "after"}:
            del update[name]


def sampled_tokens(told: dict[str, Any]) -> None:
    only(told, "generations", "weights", "trainable")
    told["generations"] = [
        {"weights": each["weights"], "calls": each["calls"]} for each in told["generations"]
    ]


def losses(told: dict[str, Any]) -> None:
    only(told, "generations", "updates")
    told["generations"] = [{"batch": each["batch"]} for each in told["generations"]]
    for update in told["updates"]:
        for micro in update["micro_batches"]:
            del micro["weights"], micro["forward"]
        for name in set(update) - {"micro_batches"}:
            del update[name]


def optimizer_steps(told: dict[str, Any]) -> None:
    only(told, "updates", "weights", "trainable")
    for update in told["updates"]:
        del update["micro_batches"]


def functions(told: dict[str, Any]) -> None:
    only(told, "generations")
    told["generations"] = [{"reward_calls": each["reward_calls"]} for each in told["generations"]]


def nothing(told: dict[str, Any]) -> None:
    only(told)


@pytest.mark.parametrize(
    ("left", "seen"),
    [
        (nothing, set()),
        (rewards_and_advantages, {"advantages", "effect"}),
        (
            tokens_and_logprobs,
            {"model inputs", "policy log-probabilities", "weights between steps", "effect"},
        ),
        (sampled_tokens, {"sampling settings", "sampler", "effect"}),
        (losses, {"loss", "micro-batches", "effect"}),
        (optimizer_steps, {"clip", "weights between steps", "optimizer step", "effect"}),
        (functions, {"rewards"}),
    ],
)
def test_a_record_of_some_parts_is_checked_in_these_and_the_others_are_not_seen(
    left: Change, seen: set[str], folder: Path
) -> None:
    """A segment that lacks something says so with the reason: it neither fails nor passes."""
    change(folder, left)
    answer = check_folder(folder)
    assert answer["first"] is None, answer["answer"]
    found = {each["segment"]: each for each in answer["segments"] if each["status"] != NOT_SEEN}
    agreed = {name for name, each in found.items() if each["status"] == "agrees"}
    assert agreed == seen
    assert all(each["note"] for each in answer["segments"] if each["status"] == NOT_SEEN)


@pytest.mark.parametrize(
    ("left", "spoil", "first"),
    [
        (rewards_and_advantages, "generations/0/batch/advantages", "advantages"),
        (tokens_and_logprobs, "updates/1/micro_batches/0/logprobs", "policy log-probabilities"),
        (losses, "updates/1/micro_batches/0/grad_logprobs", "loss"),
        (optimizer_steps, "weights/1/model.norm.weight", "optimizer step"),
    ],
)
def test_a_fault_is_found_in_a_record_of_some_parts(
    left: Change, spoil: str, first: str, folder: Path
) -> None:
    change(folder, left)
    tensors = load_file(folder / "tensors.safetensors")
    tensors[spoil].view(-1)[0] += 0.1
    (folder / "tensors.safetensors").unlink()
    save_file(tensors, folder / "tensors.safetensors")
    assert check_folder(folder)["first"] == first


def test_without_model_and_tokenizer_the_rest_is_checked(folder: Path) -> None:
    (folder / "model" / "config.json").unlink()
    (folder / "tokenizer").unlink()
    answer = check_folder(folder)
    unseen = {e["segment"]: e["note"] for e in answer["segments"] if e["status"] == NOT_SEEN}
    assert unseen.pop("prompt") == "the record has no tokenizer"
    assert set(unseen) == {
        *("sampler", "old log-probabilities", "reference log-probabilities"),
        *("policy log-probabilities", "gradient"),
    }
    assert set(unseen.values()) == {"the record has no model"}


def test_weights_that_change_before_the_step_are_seen_from_their_numbers(folder: Path) -> None:
    def touched(told: dict[str, Any]) -> None:
        told["updates"][1]["before"] = 0

    change(folder, touched)
    found = shares(check_folder(folder)["segments"])
    assert found["weights between steps"][0] == "deviates"


# --- what is wrong is one line


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            lambda told: told.update(version=VERSION + 1),
            f"record.json: version is int {VERSION + 1}",
        ),
        (lambda told: told.update(version=0), f"version is int 0, expected {VERSION}"),
        (lambda told: told.pop("version"), "version is NoneType None"),
        (lambda told: told.update(setings={}), "unknown key 'setings': did you mean 'settings'?"),
        (lambda told: told["settings"].pop("loss_type"), "key 'settings.loss_type' is missing"),
        (lambda told: told["settings"].update(group_size=3), "'generations.0' is of 4 rollouts"),
        (
            lambda told: told["updates"][0].update(after=9),
            "'updates.0.after' is 9, expected one of 4",
        ),
        (lambda told: told["updates"][0].pop("before"), "key 'updates.0.before' is missing"),
        (
            lambda told: told["generations"][0]["rows"].pop(),
            "'generations.0.messages' is of length 4",
        ),
        (lambda told: told.update(trainable=["none"]), "key 'weights.0.none' is missing"),
        (lambda told: told["weights"][1].popitem(), "is missing, expected as in"),
        (
            lambda told: told["generations"][1]["batch"].update(old="gone"),
            "key 'generations.1.batch.old' is str 'gone', expected the name of a tensor",
        ),
        (
            lambda told: told["generations"][0]["calls"][0]["outputs"][1].append(10**6),
            "key 'generations.0.calls.0.outputs.1' is 1000000 somewhere, expected from 0 to",
        ),
        (
            lambda told: told["updates"][2]["micro_batches"][0].update(generation=5),
            "is 5, expected one of 2 generations",
        ),
        (
            lambda told: told["generations"][0]["batch"].pop("loss_mask"),
            "key 'generations.0.batch.loss_mask' is missing, expected with the tokens",
        ),
        (
            lambda told: told["generations"][0]["calls"][0]["logprobs"][0].__setitem__(0, None),
            "key 'generations.0.calls.0.logprobs.0' is null somewhere, expected numbers",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_key(
    how: Callable[[Any], object], said: str, folder: Path
) -> None:
    change(folder, how)
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
    assert line(tmp_path / "none").endswith("none: no such folder, expected one with record.json")


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


_LIGHT, _ALL = 40, 500


@pytest.mark.parametrize("seed", range(_LIGHT))
def test_a_record_with_one_thing_wrong_is_one_line_or_is_checked(
    seed: int, written: Path, tmp_path: Path
) -> None:
    check_mutated(seed, written, tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(_LIGHT, _ALL))
def test_each_of_many_records_with_one_thing_wrong_is_one_line_or_is_checked(
    seed: int, written: Path, tmp_path: Path
) -> None:
    check_mutated(seed, written, tmp_path)


def check_mutated(seed: int, written: Path, folder: Path) -> None:
    said = mutate(written, folder / "record", seed)
    done = called(main, "rlvr-debug", "check", "--json", "--record", str(folder / "record"))
    if done.returncode == 2:
        assert done.stdout == "", said
        [found] = done.stderr.splitlines()
        assert found.startswith(f"error: {folder}"), said
    else:
        answer: Mapping[str, Any] = json.loads(done.stdout)
        assert done.returncode == (3 if answer["first"] else 0), said
        assert done.stderr == "", said


# --- a program of one's own


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def run(*words: str) -> Path:
        folder = tmp_path_factory.mktemp("example") / "record"
        command = [sys.executable, "examples/record_steps.py", str(folder), *words]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
        return folder

    return run


def test_a_plain_loop_that_records_itself_agrees_and_its_mistake_is_found_and_named(
    example: Callable[..., Path],
) -> None:
    right = called(main, "rlvr-debug", "check", "--record", str(example()))
    assert right.returncode == 0, right.stdout
    wrong = called(main, "rlvr-debug", "check", "--json", "--record", str(example("--mistake")))
    assert wrong.returncode == 3
    answer = json.loads(wrong.stdout)
    assert answer["first"] == "advantages"
    assert answer["names"] == [
        {"name": "the whole batch is one group", "cause": "group-construction"}
    ]


def test_the_example_is_short_and_needs_nothing_of_this_project() -> None:
    text = (ROOT / "examples" / "record_steps.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    imported = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported == {"json", "sys", "pathlib", "torch", "safetensors.torch", "transformers"}
