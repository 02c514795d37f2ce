"""A check changes nothing of a training and does not end it: whatever fails in it is a warning, and *not seen*."""

import copy
import inspect
import io
import logging
import pickle
import re
from collections.abc import Callable
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="trl is not installed: no trainer to check")

import trl
from transformers import TrainerCallback

import rlvr_debug
from rlvr_debug.recorders.trl import live, recorder, seams, steps
from rlvr_debug.replay.segments import SEGMENTS
from tests.test_check import built, checked, length_and_answer, same_weights, statuses, train

__all__ = ["built"]

HOOKS = [what for what in seams._READ_BY if what not in ("the check", "saved weights")]


@pytest.fixture(scope="module")
def plain(built: Callable[..., Any]) -> Any:
    """Return a trainer that has trained without a check."""
    trainer = built()
    train(trainer)
    return trainer


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
    built: Callable[..., Any],
    plain: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    hook: str,
    part: str,
) -> None:
    failing(monkeypatch, hook, part)
    trainer = built()
    with caplog.at_level(logging.WARNING, "rlvr_debug"):
        answer = checked(trainer)
    assert same_weights(plain, trainer)
    [said] = [line for line in caplog.messages if line.startswith("rlvr-debug: ")]
    assert f"{hook} could not be recorded, and the training goes on: " in said
    assert answer["first"] is None, answer["answer"]
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


def test_a_method_that_was_watched_is_found_where_it_was() -> None:
    class Trainer:
        def step(self) -> int:
            return 1

    def hook() -> seams.Watching:
        yield

    trainer, own, watch = Trainer(), vars(Trainer)["step"], seams.Seams()
    for place in (trainer, Trainer):
        watch.around("weights", place, "step", lambda *_: hook())
    assert "step" in vars(trainer)
    assert vars(Trainer)["step"] is not own
    assert trainer.step() == 1
    watch.undo()
    assert "step" not in vars(trainer)
    assert vars(Trainer)["step"] is own


def test_a_live_check_that_cannot_be_made_does_not_end_the_run(
    built: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain, watched = built(max_steps=4), built(max_steps=4)
    train(plain)
    for name in ("answered", "Recorder"):
        callback = live.LiveCheck(watched, every=2)
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "rlvr_debug"):
            patch.setattr(live, name, fail)
            watched.add_callback(callback)
            train(watched)
            watched.remove_callback(callback)
        assert watched.state.global_step == 4
        assert same_weights(plain, watched)
        assert not callback.answers
        assert "RuntimeError: planted" in caplog.messages[-1]
        watched = built(max_steps=4)


class Weighted:
    """A reward with a state, that a subclass looks for by its type."""

    __name__ = "weighted"
    last: list[float]

    def __call__(self, **columns: Any) -> list[float]:
        self.last = length_and_answer(**columns)
        return self.last


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


def test_reward_functions_and_methods_stay_what_they_are(built: Callable[..., Any]) -> None:
    class Told(Weighted):
        def __call__(self, **columns: Any) -> list[float]:
            watched.look()
            return super().__call__(**columns)

    function = Told()
    plain, watched = built(Looks, reward=Weighted()), built(Looks, reward=function)
    train(plain)
    answer = checked(watched)
    assert same_weights(plain, watched)
    assert watched.seen == {(id(function), MethodType, MethodType, list)}
    assert answer["first"] is None
    assert statuses(answer)["rewards"] == statuses(answer)["advantages"] == "agrees"


def test_copies_of_what_a_trainer_has_are_made_as_without_the_check(
    built: Callable[..., Any],
) -> None:
    """A user's callback copies and pickles, and its copies are what they would be: no recorder hangs on them."""

    class Copies(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            model, buffer = trainer.model, io.BytesIO()
            torch.save(model, buffer)
            buffer.seek(0)
            for copied in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
                hooks = [v for k, v in vars(copied).items() if k.endswith("_hooks")]
                assert not any(hooks)
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
    assert checked(trainer)["first"] is None
    assert same_weights(plain, trainer)
    assert {type(each) for each in made} == {TrainerCallback}


class ReadsMore(trl.GRPOTrainer):  # type: ignore[misc]
    """A trainer whose loss asks for log-probabilities of other sequences too."""

    def compute_loss(self, model: Any, inputs: Any, **named: Any) -> Any:
        loss = super().compute_loss(model, inputs, **named)
        ids = inputs["completion_ids"][:, :2]
        more = self._get_per_token_logps_and_entropies(model, ids, torch.ones_like(ids), 1)
        return loss - 0.01 * more[0].mean()


def test_a_loss_that_reads_other_sequences_too_is_recorded_and_its_term_is_said(
    built: Callable[..., Any],
) -> None:
    plain, watched = built(ReadsMore), built(ReadsMore)
    train(plain)
    callback = live.LiveCheck(watched, every=1)
    watched.add_callback(callback)
    train(watched)
    assert same_weights(plain, watched)
    assert len(callback.answers) == 2
    for answer in callback.answers:
        assert answer["first"] == "loss"
        assert "other sequences have a gradient too" in answer["answer"]
        others = {name: status for name, status in statuses(answer).items() if name != "loss"}
        assert "deviates" not in others.values()
        assert others["model inputs"] == others["policy log-probabilities"] == "agrees"
        assert others["gradient"] == "not seen"


class InHalves(trl.GRPOTrainer):  # type: ignore[misc]
    """A trainer that samples each group in two calls."""

    def _generate_single_turn(self, prompts: Any, *given: Any, **named: Any) -> Any:
        inner = super()._generate_single_turn
        places = [[n for n in range(len(prompts)) if n % 4 // 2 == half] for half in (0, 1)]
        parts = [inner([prompts[n] for n in half], *given, **named) for half in places]
        ids = dict(zip([*places[0], *places[1]], parts[0][0] + parts[1][0], strict=True))
        return ([ids[n] for n in range(len(prompts))], None, *parts[0][2:])


class Throws(trl.GRPOTrainer):  # type: ignore[misc]
    """A trainer that samples more than it trains on: some first, or all of them twice."""

    more = 4
    before = True

    def _generate_single_turn(self, prompts: Any, *given: Any, **named: Any) -> Any:
        inner = super()._generate_single_turn
        if self.before:
            inner(prompts[: self.more], *given, **named)
        out = inner(prompts, *given, **named)
        if not self.before:
            inner(prompts[: self.more], *given, **named)
        return out


class ThrowsAll(Throws):
    more = 8


class ThrowsLater(Throws):
    before = False


class ByParts(trl.GRPOTrainer):  # type: ignore[misc]
    """A trainer with log-probabilities of its own, three rows at a time: the same numbers."""

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, **_: Any
    ) -> Any:
        chosen, entropies = [], []
        for ids, read in zip(input_ids.split(3), attention_mask.split(3), strict=True):
            logits = model(input_ids=ids, attention_mask=read).logits[:, -logits_to_keep - 1 : -1]
            logprobs = (logits.float() / self.temperature).log_softmax(-1)
            chosen.append(logprobs.gather(-1, ids[:, -logits_to_keep:, None])[..., 0])
            entropies.append(-(logprobs.exp() * logprobs).sum(-1).detach())
        return torch.cat(chosen), torch.cat(entropies), None


class LeavesOut(trl.GRPOTrainer):  # type: ignore[misc]
    """A trainer that leaves completions out that are too long, as TRL does with those that have no reward."""

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, ids: Any) -> Any:
        rewards = super()._calculate_rewards(inputs, prompts, completions, ids)
        rewards[[len(each) > 8 for each in ids]] = torch.nan
        return rewards


@pytest.mark.parametrize("kind", [ByParts, LeavesOut])
def test_the_same_algorithm_by_other_means_is_no_fault(
    built: Callable[..., Any], kind: Any
) -> None:
    answer = checked(built(kind))
    assert answer["first"] is None, answer["answer"]
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
    ("kind", "unused"), [(FillsUp, 1), (InHalves, 0), (Throws, 4), (ThrowsAll, 8), (ThrowsLater, 4)]
)
def test_rollouts_that_are_sampled_in_parts_or_thrown_away_are_no_fault(
    built: Callable[..., Any], kind: Any, unused: int
) -> None:
    plain, watched = built(kind), built(kind)
    train(plain)
    answer = checked(watched)
    assert same_weights(plain, watched)
    assert answer["first"] is None, answer["answer"]
    assert {statuses(answer)[name] for name in ("prompt", "sampler", "tokens", "loss mask")} == {
        "agrees"
    }
    said = f"{unused} rollouts were sampled and not trained on"
    assert (said in answer["notes"]) == bool(unused)


def test_a_live_check_leaves_dropout_on(built: Callable[..., Any]) -> None:
    def noisy() -> Any:
        trainer = built(max_steps=2)
        for layer in trainer.model.model.layers:
            layer.self_attn.attention_dropout = 0.3
        return trainer

    plain, watched = noisy(), noisy()
    callback = live.LiveCheck(watched, every=1)
    watched.add_callback(callback)
    train(plain)
    train(watched)
    assert same_weights(plain, watched)
    assert [answer["first"] for answer in callback.answers] == [None, None]
    assert statuses(callback.answers[0])["gradient"] == "not seen"


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

    def reply(trainer: Any, context: list[int]) -> tuple[list[int], list[float]]:
        ids, logprobs = list(context), []
        for _ in range(3):
            logits = trainer.accelerator.unwrap_model(trainer.model)(torch.tensor([ids])).logits
            drawn = logits[0, -1].float().log_softmax(-1)
            ids.append(int(torch.multinomial(drawn.exp(), 1)))
            logprobs.append(float(drawn[ids[-1]]))
        return ids[len(context) :], logprobs

    @torch.no_grad()
    def rollouts(prompts: Any, trainer: Any) -> dict[str, Any]:
        assert trainer.rollout_func is rollouts
        tokenizer, out = trainer.processing_class, []
        for prompt in prompts:
            told = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
            start = tokenizer.apply_chat_template(prompt, **told)
            said = tokenizer.encode(" Once more.\n", add_special_tokens=False)
            one, first = reply(trainer, start)
            two, second = reply(trainer, start + one + said)
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
    built: Callable[..., Any], kind: str, first: str | None, limit: int
) -> None:
    watched = built(max_completion_length=limit)
    watched.rollout_func = turns_of(kind)
    answer = checked(watched)
    assert answer["first"] == first, answer["answer"]
    seen = [statuses(answer)[name] for name in ("prompt", "tool turns", "tokens")]
    assert seen == ["agrees"] * 3
    assert statuses(answer)["sampling settings"] == "not seen"
    assert first is None or "is called for rollouts (test_check_harmless.py:" in answer["answer"]


def test_a_rollout_function_that_generates_is_seen_in_its_calls() -> None:
    """Whatever its log-probabilities say of an environment's tokens, the sampler did not write them."""
    from rlvr_debug.recorders.trl.sampler_calls import function_calls
    from rlvr_debug.replay.record import Call

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
    from rlvr_debug.recorders.trl.sampler_calls import function_calls
    from rlvr_debug.replay.record import Call

    told: dict[str, Any] = {"prompt_ids": [[1, 2]] * 2, "completion_ids": returned}
    told["logprobs"] = [[-1.0] * len(each) for each in returned]
    call = Call([[1, 2]] * 2, [[3, 4, 9], [5, 6, 9]], [[-2.0] * 3] * 2)

    def text(ids: list[int]) -> str:
        return "".join(map(str, ids)).replace("9", "")

    [found] = function_calls(told, [call], lambda *_: [], text)
    assert found.outputs == wrote
