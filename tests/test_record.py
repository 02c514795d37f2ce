"""A record as a folder: what is written is read again, what is missing is not seen, and what does not fit is one line."""

import json
import math
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml
from rlvr_debug.replay.answer import answer_of
from rlvr_debug.replay.check import check
from rlvr_debug.replay.finding import NOT_SEEN
from rlvr_debug.replay.record import TOKENS, Call, Generation, Record
from rlvr_debug.replay.segments.gradient import norm
from rlvr_debug.replay.store import VERSION, check_folder, read_record, write_record
from tests.in_process import called
from tests.record_mutations import mutate
from tests.shared import ran
from tests.small_record import SHAPE, bare_record, change, line, nothing, only, shares

# --- what is written is read again


def test_a_record_that_is_read_again_has_the_same_findings(
    record: Record, record_folder: Path
) -> None:
    before, after = answer_of(record, check(record)), check_folder(record_folder)
    assert before["first"] is None
    assert shares(after["segments"]) == shares(before["segments"])
    assert {name: after[name] for name in before} == before | {"segments": after["segments"]}


@pytest.mark.heavy
def test_the_record_of_a_script_says_what_the_script_s_check_said(tmp_path: Path) -> None:
    def answered(*words: str) -> Any:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "rlvr_debug.cli", "check", "--json", *words]
        done = ran(command, env=environment)
        assert done.returncode == 3, done.stderr
        return json.loads(done.stdout)

    script, saved = tmp_path / "train.py", str(tmp_path / "record")
    script.write_text(_SCRIPT, encoding="utf-8")
    live = answered("--save", saved, str(script), str(tmp_path / "out"))
    again = answered("--record", saved)
    assert live["first"] == "rewards"
    for one, other in zip(live["segments"], again["segments"], strict=True):
        numbers = [(one.pop(name), other.pop(name)) for name in ("share", "deviation")]
        # sums over tensors are made in the order of a set; infinity is None
        assert all(x == y or x == pytest.approx(y, rel=1e-9) for x, y in numbers), one["segment"]
        del one["seconds"], other["seconds"]
        assert one == other
    assert again["tokens"] == live["tokens"]


# a reward function that draws from a hat, columns that JSON has no place for, and one function that knows no reward
_SCRIPT = f"""
import datetime, random, sys
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
    output_dir=sys.argv[1], per_device_train_batch_size=4, num_generations=4, max_completion_length=8, max_steps=3,
    beta=0.04, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, bf16=False, learning_rate=1e-3,
)
GRPOTrainer(model, [drawn, none], config, Dataset.from_list(rows)).train()
"""


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


def test_the_part_of_a_large_model_that_is_kept_is_read_again(
    record: Record, tmp_path: Path
) -> None:
    """Of it a few numbers of each tensor stand for all, and two rows for four."""
    places = {name: torch.tensor([0, 3, 7]) for name in record.trainable}
    part = replace(record, elements=places, rows=2)

    def kept(tensors: Mapping[str, Tensor] | None, of: str = "") -> dict[str, Tensor]:
        held = (tensors or {}).items()
        return {n: t if t.dim() == 0 else part.part(of or n, t) for n, t in held}

    def state(told: Mapping[str, Mapping[str, Tensor]] | None) -> dict[str, dict[str, Tensor]]:
        return {name: kept(each, name) for name, each in (told or {}).items()}

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


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: one
        b: the other
    """
    return a * b


def test_what_json_has_not_is_read_as_it_was_or_left_out_and_said(
    record: Record, tmp_path: Path
) -> None:
    """A reward function says None, a sampler may have drawn what its settings exclude, and tools are functions."""
    [generation, _] = record.generations
    call, reward_call = generation.calls[0], generation.reward_calls[0]
    excluded = [[-math.inf, *call.logprobs[0][1:]], *call.logprobs[1:]]
    columns: dict[str, Any] = {"image": [object()] * 4, "answer": ["0"] * 4, "text": "no list"}
    returned = [math.nan, 1.0, math.inf, -math.inf]
    changed = replace(
        generation,
        rows=[{**row, "image": object(), "size": (1, 2)} for row in generation.rows],
        calls=[replace(call, logprobs=excluded)],
        reward_calls=[replace(reward_call, returned=returned, columns=columns)],
    )
    odd = replace(record, generations=[changed], updates=[], tools=[multiply])
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    write_record(odd, tmp_path / "record")
    assert torch.equal(torch.random.get_rng_state(), before)  # no random number is drawn
    told = json.loads((tmp_path / "record" / "record.json").read_text(encoding="utf-8"))
    said = told["generations"][0]["reward_calls"][0]["returned"]
    assert said == [None, 1.0, "Infinity", "-Infinity"]
    again = read_record(tmp_path / "record")
    [read] = again.generations
    assert read.calls[0].logprobs == excluded
    assert math.isnan(read.reward_calls[0].returned[0])
    assert read.reward_calls[0].returned[1:] == returned[1:]
    assert set(read.rows[0]) == {"prompt", "answer", "size"}
    assert set(read.reward_calls[0].columns) == {"answer"}
    assert "the column image is left out: JSON has no place for it" in again.notes
    [tool] = again.tools or []
    assert tool["function"]["name"] == "multiply"
    assert set(tool["function"]["parameters"]["properties"]) == {"a", "b"}


def test_a_folder_that_exists_is_not_written_to(record: Record, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="exists; give a new folder"):
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


# --- what is missing is not seen, and neither fails nor passes


# what is left of a record: of each key the keys below it, all of them for None
Parts = dict[str, Any]
ROWS, WEIGHTS = Parts.fromkeys(TOKENS), Parts.fromkeys(("weights", "trainable"))
PASS = {"given": ROWS, **Parts.fromkeys(("generation", "weights", "forward", "logprobs"))}
LOSS = Parts.fromkeys(("given", "generation", "logprobs", "grad_logprobs", "loss"))
STEP = Parts.fromkeys(("gradients", "clipped", "before", "after", "optimizer", "groups"))
REWARDS = {"generations": {"rewards": None, "batch": {"advantages": None}}}
LOGPROBS = {
    **WEIGHTS,
    "generations": {"weights": None, "batch": ROWS},
    "updates": {"micro_batches": PASS, "before": None, "after": None},
}
SAMPLED = {**WEIGHTS, "generations": {"weights": None, "calls": None}}
LOSSES = {"generations": {"batch": None}, "updates": {"micro_batches": LOSS}}
STEPS = {**WEIGHTS, "updates": {**STEP, "state": None, "state_after": None}}
FUNCTIONS = {"generations": {"reward_calls": None}}


def leave(folder: Path, parts: Parts) -> None:
    def left(told: Any, parts: Parts | None) -> Any:
        if isinstance(told, list):
            return [left(each, parts) for each in told]
        return told if parts is None else {name: left(told[name], parts[name]) for name in parts}

    change(folder, lambda told: told.update(left(told, parts)))
    change(folder, lambda told: only(told, *parts))


@pytest.mark.parametrize(
    ("parts", "seen"),
    [
        ({}, set()),
        (REWARDS, {"advantages", "effect"}),
        (LOGPROBS, {"model inputs", "policy log-probabilities", "weights between steps", "effect"}),
        (SAMPLED, {"sampling settings", "sampler", "effect"}),
        (LOSSES, {"loss", "micro-batches", "effect"}),
        (STEPS, {"clip", "weights between steps", "optimizer step", "effect"}),
        (FUNCTIONS, {"rewards"}),
    ],
)
def test_a_record_of_some_parts_is_checked_in_these_and_the_others_are_not_seen(
    parts: Parts, seen: set[str], folder: Path
) -> None:
    """A segment that lacks something says so with the reason: it neither fails nor passes."""
    leave(folder, parts)
    answer = check_folder(folder)
    assert answer["first"] is None, answer["answer"]
    found = {each["segment"]: each for each in answer["segments"] if each["status"] != NOT_SEEN}
    assert {name for name, each in found.items() if each["status"] == "agrees"} == seen
    assert all(each["note"] for each in answer["segments"] if each["status"] == NOT_SEEN)


def spoil(folder: Path, *names: str, to: Callable[[Tensor], Tensor]) -> None:
    """Change the tensors of these names."""
    tensors = load_file(folder / "tensors.safetensors")
    (folder / "tensors.safetensors").unlink()
    changed = {name: to(tensors[name]).contiguous() for name in names}
    save_file(tensors | changed, folder / "tensors.safetensors")


def put_first(value: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x.flatten().index_fill(0, torch.tensor([0]), value).view_as(x)


@pytest.mark.parametrize(
    ("parts", "name", "first"),
    [
        (REWARDS, "generations/0/batch/advantages", "advantages"),
        (LOGPROBS, "updates/1/micro_batches/0/logprobs", "policy log-probabilities"),
        (LOSSES, "updates/1/micro_batches/0/grad_logprobs", "loss"),
        (STEPS, "weights/1/model.norm.weight", "optimizer step"),
    ],
)
def test_a_fault_is_found_in_a_record_of_some_parts(
    parts: Parts, name: str, first: str, folder: Path
) -> None:
    leave(folder, parts)
    spoil(folder, name, to=lambda x: put_first(float(x.flatten()[0]) + 0.1)(x))
    assert check_folder(folder)["first"] == first


def test_without_model_and_tokenizer_the_rest_is_checked(folder: Path) -> None:
    (folder / "model" / "config.json").unlink()
    (folder / "tokenizer").unlink()
    answer = check_folder(folder)
    unseen = {e["segment"]: e["note"] for e in answer["segments"] if e["status"] == NOT_SEEN}
    assert unseen.pop("prompt") == "the record has no tokenizer"
    assert set(unseen) == {
        *("sampler", "old log-probabilities", "reference log-probabilities"),
        *("policy log-probabilities", "gradient", "saved weights"),
    }
    assert set(unseen.values()) == {"the record has no model"}


def test_weights_that_change_before_the_step_are_seen_from_their_numbers(folder: Path) -> None:
    change(folder, lambda told: told["updates"][1].update(before=0))
    found = shares(check_folder(folder)["segments"])
    assert found["weights between steps"][0] == "deviates"


_PARTS = (
    *("generations", "calls", "messages", "reward_calls", "rewards", "batch", "advantages", "used"),
    *("updates", "micro_batches", "forward", "logprobs", "grad_logprobs", "rows", "reference"),
    *("gradients", "clipped", "optimizer", "state", "state_after", "groups", "saved", "weights"),
    *("again", "backwards", "alone", "together", "tools", "notes", "scalings", "trainable"),
)


def without(value: Any, names: Sequence[str]) -> Any:
    """Return JSON without these keys, wherever they stand."""
    if isinstance(value, dict):
        return {name: without(each, names) for name, each in value.items() if name not in names}
    return [without(each, names) for each in value] if isinstance(value, list) else value


def heavy(first: int, end: int) -> list[Any]:
    return [pytest.param(seed, marks=pytest.mark.heavy) for seed in range(first, end)]


@pytest.mark.parametrize("seed", [*range(12), *heavy(12, 200)])
def test_what_is_left_out_is_no_deviation(seed: int, folder: Path) -> None:
    drawn = random.Random(seed)
    names = drawn.sample(_PARTS, drawn.randint(1, 8))
    change(folder, lambda told: told.update(without(told, names)))
    for path in (folder / "model" / "config.json", folder / "tokenizer"):
        if drawn.random() < 0.2:
            path.unlink()
    done = called(main, "rlvr-debug", "check", "--record", str(folder))
    # 2: what is left must say more, such as which generation a micro-batch is of
    assert done.returncode in (0, 2), (names, done.stdout)


@pytest.mark.parametrize(
    ("name", "first"), [("attention_mask", "model inputs"), ("old", "old log-probabilities")]
)
def test_two_absences_say_what_the_trainer_has_not(name: str, first: str, folder: Path) -> None:
    """An attention mask that the model was not given, and old log-probabilities that a loss has not."""
    change(folder, lambda told: told.update(without(told, [name])))
    assert check_folder(folder)["first"] == first


# --- what does not fit is one line, and nothing is run

CASES = read_yaml(Path(__file__).with_name("test_record_refused.yaml"))


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


OTHER_VERSIONS = [
    [["version"], n, f"version is {n}, expected 1 or {VERSION}"] for n in (0, VERSION + 1)
]


@pytest.mark.parametrize(("path", "value", "said"), [*CASES, *OTHER_VERSIONS])
def test_what_does_not_fit_is_named_with_its_key(
    path: list[Any], value: Any, said: str, folder: Path
) -> None:
    change(folder, lambda told: put(told, path, value))
    assert said in line(folder)


def test_a_logprob_that_is_null_is_named_with_its_key(folder: Path) -> None:
    def nulled(told: Any) -> None:
        told["generations"][0]["calls"][0]["logprobs"][0][0] = None

    change(folder, nulled)
    said = "key 'generations.0.calls.0.logprobs.0' is null somewhere, expected numbers"
    assert said in line(folder)


@pytest.mark.parametrize(
    ("name", "to", "said"),
    [
        ("generations/0/batch/old", put_first(math.nan), "NaN where the loss counts a token"),
        ("updates/1/micro_batches/0/logprobs", put_first(math.nan), "NaN where the loss"),
        ("generations/0/batch/old", lambda x: x[:, :-1], "is of shape [4, 5], expected [4, 6]"),
        ("generations/0/batch/completion_ids", put_first(-1), "is -1 somewhere, expected"),
        ("generations/0/batch/completion_mask", lambda x: x * 2, "is 2 somewhere, expected from 0"),
        ("generations/0/rewards", lambda x: x[:, :1], "is of shape [4, 1], expected [4, 2]"),
        ("generations/1/rewards", Tensor.long, "is of type torch.int64, expected a floating"),
        ("weights/2/model.norm.weight", lambda x: x[:-1], "is of shape [15], expected [16]"),
        ("updates/0/gradients/model.norm.weight", lambda x: x[None], "expected [16]"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named_with_what_is_expected(
    name: str, to: Callable[[Tensor], Tensor], said: str, folder: Path
) -> None:
    spoil(folder, name, to=to)
    found = line(folder)
    assert found.startswith("record.json: key '")
    assert said in found


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint16])
def test_token_ids_may_be_of_any_integer_type(dtype: torch.dtype, folder: Path) -> None:
    tensors = load_file(folder / "tensors.safetensors")
    whole = [name for name, tensor in tensors.items() if not tensor.is_floating_point()]
    spoil(folder, *whole, to=lambda x: x.to(dtype))
    assert check_folder(folder)["first"] is None


@pytest.mark.parametrize("name", ["record.json", "tensors.safetensors"])
def test_a_file_that_is_missing_or_cut_is_one_line_with_its_name(name: str, folder: Path) -> None:
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    assert line(folder).startswith(f"{name}: ")
    (folder / name).write_bytes(content[: len(content) // 2])
    assert line(folder).startswith(f"{name}: ")


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    said = "none: no such folder, expected a folder of a record, with record.json"
    assert line(tmp_path / "none").endswith(said)


def own_tokenizer(folder: Path, names: str = "*") -> Path:
    """Have these files of the tokenizer in place of the link to all of them."""
    own = folder / "tokenizer"
    kept = {path.name: path.read_bytes() for path in own.glob(names)}
    own.unlink()
    own.mkdir()
    for name, content in kept.items():
        (own / name).write_bytes(content)
    return own


def test_a_tokenizer_without_its_vocabulary_is_refused(folder: Path) -> None:
    """transformers would make one with an empty vocabulary, and every prompt would deviate."""
    own_tokenizer(folder, "tokenizer_config.json")
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
    change(folder, lambda told: told.pop("layer_types"), "model/config.json")  # also refused
    change(folder, lambda told: put(told, [key], value), "model/config.json")
    assert said in line(folder)


def test_tied_weights_may_be_given_under_both_names_if_they_are_the_same(tmp_path: Path) -> None:
    config = Qwen2Config(vocab_size=9, tie_word_embeddings=True, **SHAPE)
    model = Qwen2ForCausalLM(config)
    named = dict(model.named_parameters())
    call = Call([[1, 2]], [[3, 4, 5]], [[-1.0, -2.0, -3.0]])
    tied = bare_record(
        build=lambda: Qwen2ForCausalLM(config),
        weights=[{**named, "lm_head.weight": named["model.embed_tokens.weight"]}],
        trainable=tuple(named),
        generations=[Generation(calls=[call])],
    )
    write_record(tied, tmp_path / "same")
    found = shares(check_folder(tmp_path / "same")["segments"])
    assert found["sampler"][0] == "deviates"  # its log-probabilities are made up: it was computed
    tied.weights = [{**named, "lm_head.weight": torch.zeros(9, 16)}]
    write_record(tied, tmp_path / "other")
    said = "key 'weights.0.lm_head.weight' is another tensor, expected that of"
    assert said in line(tmp_path / "other")


def test_an_adapter_without_its_other_half_is_refused(tmp_path: Path) -> None:
    module = "base_model.model.model.layers.0.mlp"
    sizes = {"base_layer": (4, 4), "lora_A.default": (2, 4), "lora_B.default": (4, 2)}
    weights = {f"{module}.{name}.weight": torch.zeros(size) for name, size in sizes.items()}
    adapter = bare_record(weights=[weights], scalings={module: {"default": 2.0}})
    write_record(adapter, tmp_path / "whole")
    assert read_record(tmp_path / "whole").weights[0].keys() == weights.keys()
    del weights[f"{module}.lora_B.default.weight"]
    write_record(adapter, tmp_path / "half")
    assert "key 'weights.0' is with adapters that do not fit" in line(tmp_path / "half")


class Fires:
    """Makes a folder where it is unpickled."""

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
    (own_tokenizer(folder) / "evil.py").write_text(code, encoding="utf-8")
    evil = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    change(folder, lambda told: told.update(evil), "tokenizer/tokenizer_config.json")
    (folder / "tensors.safetensors").unlink()
    (folder / "tensors.safetensors").symlink_to(tmp_path / "whole")
    save_file({"x": torch.zeros(1)}, tmp_path / "whole")
    assert line(folder)
    change(folder, nothing)
    assert line(folder)
    assert not fired.exists()


@pytest.mark.parametrize("seed", [*range(40), *heavy(40, 500)])
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


# --- a program of one's own


@pytest.mark.heavy
def test_a_plain_loop_that_records_itself_agrees_and_its_mistake_is_found_and_named(
    tmp_path: Path,
) -> None:
    def checked(name: str, *words: str) -> subprocess.CompletedProcess[str]:
        folder = str(tmp_path / name)
        program = [sys.executable, "examples/record_steps.py", folder, *words]
        ran(program, cwd=ROOT, check=True, timeout=300)
        return called(main, "rlvr-debug", "check", "--json", "--record", folder)

    right, wrong = checked("right"), checked("wrong", "--mistake")
    assert (right.returncode, wrong.returncode) == (0, 3), right.stdout
    answer = json.loads(wrong.stdout)
    assert answer["first"] == "advantages"
    assert answer["names"] == [
        {"name": "the whole batch is one group", "cause": "group-construction"}
    ]
