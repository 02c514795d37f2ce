"""Check a GRPOTrainer that is there: in a notebook, or every so many steps of a long run."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback, TrainerState

from rlvr_debug.recorders.ranks import part_of
from rlvr_debug.recorders.trl.recorder import Recorder
from rlvr_debug.recorders.trl.seams import Seams, warn
from rlvr_debug.replay.answer import answer_of, answer_text
from rlvr_debug.replay.check import check
from rlvr_debug.replay.finding import NOT_SEEN
from rlvr_debug.replay.record import Record

__all__ = ["LiveCheck", "Steps", "check_trainer", "checked", "recorded", "watched"]


class Steps(TrainerCallback):  # type: ignore[misc] # transformers' types are not read
    """Tells a recorder of the optimizer's steps, and ends the training when it has enough."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._recorder.begin()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._recorder.before_step()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._recorder.after_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if self._recorder.end_step():
            control.should_training_stop = True
        control.should_save = control.should_evaluate = False
        return control


def recorded(
    trainer: Any,
    run: Callable[[], Any],
    *,
    steps: int,
    rewards: bool,
    beat: Callable[[str], None] = lambda _: None,
) -> tuple[Record, float]:
    """Return the record of so many optimizer steps of the trainer, and the seconds that they took.

    run: trains, and returns when a callback stops it. rewards: whether reward functions are called again. beat: is told
    of each call that is watched. Of several processes it is this one's part.
    """
    return watched(Recorder(trainer, steps=steps, rewards=rewards, beat=beat), trainer, run)


def watched(recorder: Recorder, trainer: Any, run: Callable[[], Any]) -> tuple[Record, float]:
    """Return the recorder's record of a training, and the seconds that it took."""
    callback = Steps(recorder)
    if recorder.record.elements:  # before it takes minutes and memory
        print("\n".join(recorder.record.notes), file=sys.stderr, flush=True)
    recorder.attach()
    trainer.add_callback(callback)
    started = time.perf_counter()
    try:
        run()
    finally:
        trainer.remove_callback(callback)
        record = recorder.detach()
    ran = time.perf_counter() - started
    recorder.take_saved()
    if trainer.accelerator.num_processes > 1:
        main = trainer.accelerator.is_main_process
        record = part_of(record, recorder.random, main=main)
    return record, ran


def checked(record: Record, ran: float) -> dict[str, Any]:
    """Return what the check says of a record (replay/answer.py). ran: the seconds that its steps took."""
    started = time.perf_counter()
    found = check(record)
    took = time.perf_counter() - started
    return {**answer_of(record, found), "seconds": {"steps": ran, "check": took}}


def check_trainer(trainer: Any, *, steps: int = 3, rewards: bool = True) -> Mapping[str, Any]:
    """Train so many optimizer steps, check them, print what was found and return it.

    The trainer is as before afterwards: weights, random numbers, and no step made. rewards: whether the reward
    functions are called again, which costs what they cost. Of several processes nothing is checked, and nothing returned.
    """
    if _several(trainer):
        return {}
    kept = {name: tensor.detach().clone() for name, tensor in trainer.model.named_parameters()}
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - users' functions draw from it
    with torch.random.fork_rng():
        try:
            record, ran = recorded(trainer, trainer.train, steps=steps, rewards=rewards)
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
            with torch.no_grad():
                for name, tensor in trainer.model.named_parameters():
                    tensor.copy_(kept[name])
                    tensor.grad = None
            trainer.optimizer = trainer.lr_scheduler = None
            trainer.state = TrainerState()
            for name, value in (("_step", 0), ("_buffered_inputs", None)):
                if hasattr(trainer, name):
                    setattr(trainer, name, value)
    answer = checked(record, ran)
    print(answer_text(answer))
    return answer


class LiveCheck(TrainerCallback):  # type: ignore[misc] # transformers' types are not read
    """Checks one update every so many optimizer steps of a run, which goes on.

        trainer.add_callback(LiveCheck(trainer, every=100))

    Each time a line is printed and TRL logs `check/deviates` (0 or 1) and `check/share`, the largest share of a tolerance.
    Reward functions are not called again unless `rewards` says so. Whatever fails here is a warning, and the run goes on.
    """

    def __init__(self, trainer: Any, *, every: int = 100, rewards: bool = False) -> None:
        self._trainer, self._every, self._rewards = trainer, every, rewards
        self._own = trainer.optimizer is not None
        self._recorder: Recorder | None = None
        self._seams = Seams()
        self.answers: list[dict[str, Any]] = []
        self._several = _several(trainer)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin to record, where it is time."""
        if self._recorder is None and not self._several and state.global_step % self._every == 0:
            self._seams.safely("weights", self._begin)

    def _begin(self) -> None:
        recorder = Recorder(
            self._trainer, steps=1, most=1, rewards=self._rewards, own=self._own, still=False
        )
        try:
            recorder.attach()
        except Exception:
            recorder.undo()
            raise
        self._recorder, self._started = recorder, time.perf_counter()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        if self._recorder is not None:
            self._recorder.before_step()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        if self._recorder is not None:
            self._recorder.after_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check what was recorded. Where the update was of an older generation, the next one is waited for."""
        recorder = self._recorder
        if recorder is not None and recorder.end_step():
            self._recorder = None
            self._seams.safely("the check", self._check, recorder, state.global_step)

    def _check(self, recorder: Recorder, step: int) -> None:
        ran = time.perf_counter() - self._started
        answer = checked(recorder.detach(), ran)
        self.answers.append(answer)
        print(f"check at step {step}: {answer['answer']}", flush=True)
        shares = [e["share"] or 0.0 for e in answer["segments"] if e["status"] != NOT_SEEN]
        metrics = getattr(self._trainer, "_metrics", None)
        if metrics is not None:  # averaged and logged with TRL's own
            metrics["train"]["check/deviates"].append(float(bool(answer["first"])))
            metrics["train"]["check/share"].append(max(shares, default=0.0))

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Leave nothing behind where the run ends while an update is recorded."""
        if self._recorder is not None:
            self._recorder.undo()
            self._recorder = None


def _several(trainer: Any) -> bool:
    """Return whether several processes train, which are not recorded yet; the first one says so."""
    accelerator = trainer.accelerator
    if accelerator.num_processes > 1 and accelerator.is_main_process:
        warn(
            f"{accelerator.num_processes} processes train together, and only `rlvr-debug check` records those; nothing is "
            "checked, and the training goes on"
        )
    return bool(accelerator.num_processes > 1)
