"""A record of some parts: what is missing is not seen, and neither fails nor passes."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from rlvr_debug.cli import main
from rlvr_debug.replay.finding import NOT_SEEN
from rlvr_debug.replay.store import check_folder
from tests.in_process import called
from tests.small_record import Change, change, nothing, only, shares


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
        *("policy log-probabilities", "gradient", "saved weights"),
    }
    assert set(unseen.values()) == {"the record has no model"}


def test_weights_that_change_before_the_step_are_seen_from_their_numbers(folder: Path) -> None:
    def touched(told: dict[str, Any]) -> None:
        told["updates"][1]["before"] = 0

    change(folder, touched)
    found = shares(check_folder(folder)["segments"])
    assert found["weights between steps"][0] == "deviates"


# whose absence has a meaning: an attention mask that the model was not given, old log-probabilities that a loss has not
_MEANT = ("attention_mask", "old")
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


_MANY = (pytest.param(seed, marks=pytest.mark.heavy) for seed in range(12, 200))


@pytest.mark.parametrize("seed", [*range(12), *_MANY])
def test_what_is_left_out_is_no_deviation(seed: int, folder: Path) -> None:
    drawn = random.Random(seed)
    names = drawn.sample(_PARTS, drawn.randint(1, 8))
    change(folder, lambda told: told.update(without(told, names)))
    if drawn.random() < 0.2:
        (folder / "model" / "config.json").unlink()
    if drawn.random() < 0.2:
        (folder / "tokenizer").unlink()
    done = called(main, "rlvr-debug", "check", "--record", str(folder))
    # 2: what is left must say more, such as which generation a micro-batch is of
    assert done.returncode in (0, 2), (names, done.stdout)


@pytest.mark.parametrize("name", _MEANT)
def test_two_absences_say_what_the_trainer_has_not(name: str, folder: Path) -> None:
    change(folder, lambda told: told.update(without(told, [name])))
    first = {"attention_mask": "model inputs", "old": "old log-probabilities"}
    assert check_folder(folder)["first"] == first[name]
