"""A record as a folder: what is written is read again, and any program can write one."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.errors import InputError
from rlvr_debug.replay.answer import answer_of
from rlvr_debug.replay.check import check
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.segments.gradient import norm
from rlvr_debug.replay.store import check_folder, read_record, write_record
from tests.in_process import called
from tests.shared import ran
from tests.small_record import bare_record, change, shares

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
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT, encoding="utf-8")
    saved = tmp_path / "record"
    lived = rlvr_debug("check", "--json", "--save", str(saved), str(script), str(tmp_path / "out"))
    read = rlvr_debug("check", "--json", "--record", str(saved))
    assert (lived.returncode, read.returncode) == (3, 3), lived.stderr
    live, again = json.loads(lived.stdout), json.loads(read.stdout)
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


def rlvr_debug(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    return ran([sys.executable, "-m", "rlvr_debug.cli", *words], env=environment)


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


def test_writing_a_record_draws_no_random_number(record: Record, tmp_path: Path) -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    write_record(record, tmp_path / "record")
    assert torch.equal(torch.random.get_rng_state(), before)


# --- a program of one's own


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def run(*words: str) -> Path:
        folder = tmp_path_factory.mktemp("example") / "record"
        command = [sys.executable, "examples/record_steps.py", str(folder), *words]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
        return folder

    return run


@pytest.mark.heavy
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
