"""A check changes nothing of a training and does not end it: whatever fails in it is a warning, and *not seen*."""

import copy
import inspect
import io
import logging
import pickle
import re
from collections.abc import Callable
from functools import cache
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="trl is not installed: no trainer to check")

import trl
from transformers import TrainerCallback

import rlvr_debug
from rlvr_debug.recorders.trl import live, recorder, seams, steps
from rlvr_debug.recorders.trl.sampler_calls import function_calls
from rlvr_debug.replay.record import Call
from rlvr_debug.replay.segments import SEGMENTS
from tests.test_check import (
    built,
    by_hand,
    length_and_answer,
    overriding,
    placed,
    same_weights,
    statuses,
    train,
)

HOOKS = [what for what in seams._READ_BY if what not in ("the check", "saved weights")]


@cache
def trained(kind: Any = None) -> Any:
    """Return a trainer that has trained without a check."""
    trainer = built(kind)
    train(trainer)
    return trainer


def live_checked(trainer: Any) -> list[Any]:
    """Return the answers of a check of every step."""
    callback = live.LiveCheck(trainer, every=1)
    trainer.add_callback(callback)
    train(trainer)
    return callback.answers


def fail(*_: Any, **__: Any) -> None:
    raise RuntimeError("planted")


def failing(monkeypatch: pytest.MonkeyPatch, hook: str, part: str) -> None:
    """Have all that records this fail: before the call that it is around, or after it."""
    inner = seams.Seams.safely

    def safely(own: Any, what: str, function: Any, *given: Any, **named: Any) -> Any:
        ended = function is seams._ended
        planted = what == hook and ended == (part == "after")
        return inner(own, what, fail if planted else function, *given, **named)

    monkeypatch.setattr(seams.Seams, "safely", safely)


AFTER = ("generations", "rewards", "losses", "log-probabilities", "gradients")


@pytest.mark.parametrize(
    ("hook", "part"),
    [*((hook, "before") for hook in HOOKS), *((hook, "after") for hook in AFTER)],
)
def test_whatever_fails_in_recording_is_not_seen_and_the_run_ends_in_the_same_weights(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hook: str, part: str
) -> None:
    failing(monkeypatch, hook, part)
    trainer = built()
    with caplog.at_level(logging.WARNING, "rlvr_debug"):
        answer = placed(trainer)
    assert same_weights(trained(), trainer)
    [said] = [line for line in caplog.messages if line.startswith("rlvr-debug: ")]
    assert f"{hook} could not be recorded, and the training goes on: " in said
    parts = {*seams._READ_BY[hook]}
    lost = {s.name for s in SEGMENTS if {s.name, s.of, "all"} & parts}
    notes = {each["segment"]: each["note"] for each in answer["segments"]}
    lost &= statuses(answer).keys()  # of one process alone, processes cannot differ
    assert lost <= {name for name, status in statuses(answer).items() if status == "not seen"}
    for name in lost:
        assert notes[name] == f"could not be recorded: {said.partition('goes on: ')[2]}"
        assert "test_check_harmless.py:" in notes[name]


def test_no_hook_is_put_in_place_without_the_guard() -> None:
    source = "".join(inspect.getsource(each) for each in (recorder, steps))
    assert re.findall(r"setattr\((\w+),", source) == ["micro"]  # a part of the record
    hooks = re.findall(r"register_\w+\(\s*(.*?),", source)
    assert hooks == [f'self._seams.guarded("{what}"' for what in ("gradients", "forward passes")]


class Stepping:
    def step(self) -> int:
        return 1


def waiting(*_: Any) -> seams.Watching:
    yield


def test_a_method_that_was_watched_is_found_where_it_was() -> None:
    trainer, own, watch = Stepping(), vars(Stepping)["step"], seams.Seams()
    for place in (trainer, Stepping):
        watch.around("weights", place, "step", waiting)
    assert "step" in vars(trainer)
    assert vars(Stepping)["step"] is not own
    assert trainer.step() == 1
    watch.undo()
    assert "step" not in vars(trainer)
    assert vars(Stepping)["step"] is own


@pytest.mark.parametrize("name", ["answered", "Recorder"])
def test_a_live_check_that_cannot_be_made_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setattr(live, name, fail)
    watched = built()
    with caplog.at_level(logging.WARNING, "rlvr_debug"):
        assert not live_checked(watched)
    assert watched.state.global_step == 2
    assert same_weights(trained(), watched)
    assert "RuntimeError: planted" in caplog.messages[-1]


class Weighted:
    """A reward with a state, that a subclass looks for by its type."""

    __name__ = "weighted"
    last: list[float]
    look: Callable[[], None] = staticmethod(lambda: None)

    def __call__(self, **columns: Any) -> list[float]:
        self.look()
        self.last = length_and_answer(**columns)
        return self.last


class Told(Weighted):
    """One of a subclass."""


class Looks(trl.GRPOTrainer):  # type: ignore[misc]
    """A trainer that computes its advantages of what its reward functions kept, wherever it can look at them."""

    seen: set[tuple[Any, ...]]

    def look(self) -> None:
        kinds = (type(self.compute_loss), type(self._calculate_rewards), type(self.reward_funcs))
        self.__dict__.setdefault("seen", set()).add((*map(id, self.reward_funcs), *kinds))

    def _calculate_rewards(self, *given: Any, **named: Any) -> Any:
        self.look()
        found = super()._calculate_rewards(*given, **named)
        self.look()
        return found

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.look()
        out = super()._generate_and_score_completions(inputs)
        kept = [torch.tensor(f.last) for f in self.reward_funcs if isinstance(f, Weighted)]
        rewards = torch.stack(kept).sum(0) if kept else torch.zeros(len(inputs))
        group = rewards.view(-1, self.num_generations)
        off = group - group.mean(1, keepdim=True)
        out["advantages"] = (off / (group.std(1, keepdim=True) + 1e-4)).flatten()
        return out

    def compute_loss(self, *given: Any, **named: Any) -> Any:
        self.look()
        return super().compute_loss(*given, **named)


def test_reward_functions_and_methods_stay_what_they_are() -> None:
    function = Told()
    plain, watched = (built(Looks, reward=f, num_iterations=2) for f in (Weighted(), function))
    function.look = watched.look
    train(plain)
    answer = placed(watched)
    assert same_weights(plain, watched)
    assert watched.seen == {(id(function), MethodType, MethodType, list)}
    assert statuses(answer)["rewards"] == statuses(answer)["advantages"] == "agrees"


def test_copies_of_what_a_trainer_has_are_made_as_without_the_check() -> None:
    """A user's callback copies and pickles, and its copies are what they would be: no recorder hangs on them."""

    class Copies(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            model, buffer = trainer.model, io.BytesIO()
            torch.save(model, buffer)
            buffer.seek(0)
            for copied in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
                assert not any(v for k, v in vars(copied).items() if k.endswith("_hooks"))
                assert vars(copied).keys() == vars(model).keys()
            own = (trainer.optimizer, trainer.lr_scheduler, args, trainer.reward_funcs)
            callbacks = trainer.callback_handler.callbacks
            for each in (*own, [each for each in callbacks if each is not self]):
                copy.deepcopy(each)
            pickle.dumps(callbacks[-1])
            made.append(copy.deepcopy(callbacks[-1]))

    made: list[Any] = []
    plain, trainer = (built(gradient_checkpointing=False) for _ in range(2))
    train(plain)
    trainer.add_callback(Copies())
    placed(trainer)
    assert same_weights(plain, trainer)
    assert {type(each) for each in made} == {TrainerCallback}


@overriding("compute_loss")
def reads_more(trainer: Any, usual: Any, model: Any, inputs: Any, **named: Any) -> Any:
    """Ask in the loss for log-probabilities of other sequences too."""
    loss, ids = usual(model, inputs, **named), inputs["completion_ids"][:, :2]
    more = trainer._get_per_token_logps_and_entropies(model, ids, torch.ones_like(ids), 1)
    return loss - 0.01 * more[0].mean()


def test_a_loss_that_reads_other_sequences_too_is_recorded_and_its_term_is_said() -> None:
    watched = built(reads_more)
    answers = live_checked(watched)
    assert same_weights(trained(reads_more), watched)
    assert len(answers) == 2
    for answer in answers:
        assert answer["first"] == "loss"
        assert "other sequences have a gradient too" in answer["answer"]
        others = {name: status for name, status in statuses(answer).items() if name != "loss"}
        assert "deviates" not in others.values()
        assert others["model inputs"] == others["policy log-probabilities"] == "agrees"
        assert others["gradient"] == "not seen"


def throwing(first: int = 0, last: int = 0) -> Any:
    """Return a trainer that samples more than it trains on: so many before, or after."""

    def sampled(_: Any, usual: Any, prompts: Any, *given: Any, **named: Any) -> Any:
        parts = [prompts[:first], prompts, prompts[:last]]
        outs = [usual(part, *given, **named) for part in parts if part]
        return outs[bool(first)]

    return overriding("_generate_single_turn")(sampled)


@overriding("_calculate_rewards")
def leaves_out(_: Any, usual: Any, inputs: Any, prompts: Any, completions: Any, ids: Any) -> Any:
    """Leave completions out that are too long, as TRL does with those that have no reward."""
    rewards = usual(inputs, prompts, completions, ids)
    rewards[[len(each) > 8 for each in ids]] = torch.nan
    return rewards


def test_rows_that_are_left_out_as_trl_leaves_them_out_are_no_fault() -> None:
    answer = placed(built(leaves_out))
    assert statuses(answer)["model inputs"] == statuses(answer)["rewards"] == "agrees"


class FillsUp(trl.GRPOTrainer):  # type: ignore[misc]
    """A trainer that samples two replies of each prompt, and others of every second; what lacks is masked, without reward."""

    def _generate_single_turn(self, prompts: Any, *given: Any, **named: Any) -> Any:
        inner = super()._generate_single_turn
        inner([prompts[0][:-1]], *given, **named)  # of another prompt, for something else
        first = [n for n in range(len(prompts)) if n % 4 < 2]
        more = [n for n in range(len(prompts)) if n % 8 in (2, 3)]
        replies = [[self._tokenizer.eos_token_id] for _ in prompts]
        for places in (first, more):
            ids, *_ = inner([prompts[n] for n in places], *given, **named)
            for place, reply in zip(places, ids, strict=True):
                replies[place] = reply
        self.filled = torch.tensor([n not in first + more for n in range(len(prompts))])
        return replies, None

    def _calculate_rewards(self, *given: Any) -> Any:
        rewards = super()._calculate_rewards(*given)
        rewards[self.filled] = torch.nan
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        out = super()._generate_and_score_completions(inputs)
        lost = out["completion_mask"][self.filled].sum()
        out["completion_mask"][self.filled] = 0
        out["num_items_in_batch"] = out["num_items_in_batch"] - lost
        return out


@pytest.mark.parametrize(
    ("kind", "unused"),
    [(FillsUp, 1), (throwing(first=4), 4), (throwing(first=8), 8), (throwing(last=4), 4)],
    ids=["filled up", "some first", "all twice", "some later"],
)
def test_rollouts_that_are_sampled_in_parts_or_thrown_away_are_no_fault(
    kind: Any, unused: int
) -> None:
    watched = built(kind)
    answer = placed(watched)
    assert same_weights(trained(kind), watched)
    found = statuses(answer)
    assert {found[name] for name in ("prompt", "sampler", "tokens", "loss mask")} == {"agrees"}
    said = f"{unused} rollouts were sampled and not trained on"
    assert said in answer["notes"]


class Noisy(trl.GRPOTrainer):  # type: ignore[misc]
    """A trainer whose model has dropout."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        for layer in self.model.model.layers:
            layer.self_attn.attention_dropout = 0.3


def test_a_live_check_leaves_dropout_on() -> None:
    watched = built(Noisy)
    answers = live_checked(watched)
    assert same_weights(trained(Noisy), watched)
    assert [answer["first"] for answer in answers] == [None, None]
    assert statuses(answers[0])["gradient"] == "not seen"


# --- several processes


def test_processes_that_cannot_meet_are_not_checked_and_train_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    accelerator = SimpleNamespace(num_processes=8, process_index=1, distributed_type="MULTI_GPU")
    trainer = SimpleNamespace(accelerator=accelerator, optimizer=None)
    with caplog.at_level(logging.WARNING, "rlvr_debug"):
        assert rlvr_debug.check(trainer) == {}
        live.LiveCheck(trainer).on_step_begin(None, SimpleNamespace(global_step=0), None)
    assert ["8 processes on several machines" in line for line in caplog.messages] == [True] * 2


def turns_of(kind: str) -> Callable[..., Any]:
    """Return a rollout function of two replies with an environment's text between them, or one with a fault."""

    def rollouts(prompts: Any, trainer: Any) -> dict[str, Any]:
        assert trainer.rollout_func is rollouts
        tokenizer, out = trainer.processing_class, []
        model = trainer.accelerator.unwrap_model(trainer.model)
        for prompt in prompts:
            told = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
            start = tokenizer.apply_chat_template(prompt, **told)
            said = tokenizer.encode(" Once more.\n", add_special_tokens=False)
            one, first = by_hand(model, start, 3)
            two, second = by_hand(model, start + one + said, 3)
            second = first if kind == "logprobs" else second
            mask = [1] * len(one) + [int(kind == "all")] * len(said) + [1] * len(two)
            out.append((start, one + said + two, first + [0.0] * len(said) + second, mask))
        names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
        return dict(zip(names, map(list, zip(*out, strict=True)), strict=True))

    return rollouts


@pytest.mark.parametrize(
    ("kind", "first", "limit"),
    [
        ("right", None, 10),  # which TRL cuts no completion of a function at
        ("all", "loss mask", 64),
        ("logprobs", "sampler", 64),
    ],
)
def test_what_a_rollout_function_returns_is_held_to_the_policy_and_to_what_is_trained(
    kind: str, first: str | None, limit: int
) -> None:
    watched = built(max_completion_length=limit)
    watched.rollout_func = turns_of(kind)
    answer = placed(watched, first)
    seen = [statuses(answer)[name] for name in ("prompt", "tool turns", "tokens")]
    assert seen == ["agrees"] * 3
    assert statuses(answer)["sampling settings"] == "not seen"
    assert first is None or "is called for rollouts (test_check_harmless.py:" in answer["answer"]


def test_a_rollout_function_that_generates_is_seen_in_its_calls() -> None:
    """Whatever its log-probabilities say of an environment's tokens, the sampler did not write them."""
    told = {"prompt_ids": [[1, 2]], "completion_ids": [[3, 4, 5, 6]], "logprobs": [[-1.0] * 4]}
    calls = [Call([[1, 2]], [[3]]), Call([[1, 2, 3, 4, 5]], [[6]])]
    one, two = function_calls(told, calls, lambda *_: [], str)
    assert (one.prompts, one.outputs, one.rows) == ([[1, 2]], [[3]], [0])
    assert (two.prompts, two.outputs, two.logprobs) == ([[1, 2, 3, 4, 5]], [[6]], [[-1.0]])
    # a token of the policy that is certain, and one of the environment's
    told["logprobs"] = [[-1.0, 0.0, 0.0, -1.0]]
    [one, two] = function_calls(told, [], lambda *_: [-1.0, -1e-5, -8.0, -1.0], str)
    assert (one.outputs, two.outputs) == ([[3, 4]], [[6]])
    assert function_calls({**told, "logprobs": None}, [], lambda *_: [], str) == []


@pytest.mark.parametrize(
    ("returned", "wrote"),
    [
        ([[3, 4], [5, 6]], [[3, 4, 9], [5, 6, 9]]),  # without their ends
        ([[34, 9], [5, 6, 9]], [[3, 4, 9], [5, 6, 9]]),  # in other tokens of the same text
        ([[3], [5, 6, 9]], [[3], [5, 6, 9]]),  # cut
        ([[3, 4], [5, 6, 9]], [[3, 4], [5, 6, 9]]),  # cut before the end
        ([[3, 4, 9], [5, 6, 9]], [[3, 4, 9], [5, 6, 9]]),
        ([[3, 4, 9, 7], [5, 6, 9]], [[3, 4, 9], [5, 6, 9]]),  # an environment goes on
        ([[7, 7, 9], [8, 9]], [[7, 7, 9], [8, 9]]),  # another text: of a demonstration
    ],
)
def test_what_a_rollout_function_encodes_again_is_told_from_what_it_cuts(
    returned: list[list[int]], wrote: list[list[int]]
) -> None:
    told: dict[str, Any] = {"prompt_ids": [[1, 2]] * 2, "completion_ids": returned}
    told["logprobs"] = [[-1.0] * len(each) for each in returned]
    call = Call([[1, 2]] * 2, [[3, 4, 9], [5, 6, 9]], [[-2.0] * 3] * 2)

    def text(ids: list[int]) -> str:
        return "".join(map(str, ids)).replace("9", "")

    [found] = function_calls(told, [call], lambda *_: [], text)
    assert found.outputs == wrote
