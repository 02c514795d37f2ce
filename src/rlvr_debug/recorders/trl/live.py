"""Check a GRPOTrainer that is there: in a script, in a notebook, or every so many steps of a long run."""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback, TrainerState

from rlvr_debug.errors import InputError, reason
from rlvr_debug.recorders.pieces import Cut, local
from rlvr_debug.recorders.ranks import merged
from rlvr_debug.recorders.trl.launched import Beats, Ranks, launched
from rlvr_debug.recorders.trl.recorder import Recorder
from rlvr_debug.recorders.trl.sampler_calls import make_watchable
from rlvr_debug.recorders.trl.seams import Seams, warn
from rlvr_debug.replay.answer import answer_of, answer_text
from rlvr_debug.replay.check import check
from rlvr_debug.replay.finding import NOT_SEEN
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.store import read_part, write_record

__all__ = ["LiveCheck", "Steps", "check_trainer", "checked", "recorded", "together", "watched"]

_POLL = 0.05
_LIMIT = 600.0  # seconds in which a rank has to record something
_meetings = itertools.count()  # of processes; all of them count alike


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
) -> tuple[Record, float]:
    """Return the record of so many optimizer steps of the trainer, and the seconds that they took.

    run: trains, and returns when a callback stops it. rewards: whether reward functions are called again.
    """
    return watched(Recorder(trainer, steps=steps, rewards=rewards), trainer, run)


def watched(recorder: Recorder, trainer: Any, run: Callable[[], Any]) -> tuple[Record, float]:
    """Return the recorder's record of a training, of several processes this one's part, and the seconds that it took."""
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
        recorder.detach()
    ran = time.perf_counter() - started
    recorder.take_saved()
    return recorder.part(), ran


def need_replicas(accelerator: Any) -> None:
    """Raise InputError, one line, where a training is of a kind that is not recorded yet."""
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    fsdp1 = kind == "FSDP" and not getattr(accelerator, "is_fsdp2", False)
    if (fsdp1 or kind == "MEGATRON_LM") and accelerator.num_processes > 1:
        name = "FSDP's first version" if fsdp1 else kind
        raise InputError(
            f"{name} cuts up what it trains in a way that is not recorded: DDP, FSDP2 and DeepSpeed's ZeRO are"
        )


def together(
    record: Record, cut: Cut, ranks: Ranks, look: Callable[[], None] = lambda: None
) -> Record | None:
    """Return the record of all ranks on the first of them, when all have written their parts; None on the others.

    look: called meanwhile; ends the waiting by what it raises.
    """
    if ranks.rank:
        write_record(record, ranks.part(ranks.rank))
        return None
    ranks.part(0).mkdir()
    others = [ranks.part(rank) for rank in range(1, ranks.size)]
    while not all(each.exists() for each in others):
        look()
        time.sleep(_POLL)
    return merged([record, *map(read_part, others)], cut)


def checked(record: Record, ran: float) -> dict[str, Any]:
    """Return what the check says of a record (replay/answer.py). ran: the seconds that its steps took."""
    started = time.perf_counter()
    found = check(record)
    took = time.perf_counter() - started
    return {**answer_of(record, found), "seconds": {"steps": ran, "check": took}}


def _ignore(_: str) -> None:
    """Tell nobody that this process goes on: it is the only one."""


def _met(accelerator: Any) -> Ranks | None:
    """Return where the processes of a training meet this time; None of one process."""
    size, rank = accelerator.num_processes, accelerator.process_index
    if size < 2:
        return None
    need_replicas(accelerator)
    ranks = launched(meeting=f"check-{next(_meetings)}")
    if ranks is None or (ranks.rank, ranks.size) != (rank, size):
        raise InputError(
            f"the trainer is process {rank} of {size}, and RANK and WORLD_SIZE say otherwise, as no launcher sets them"
        )
    return ranks


def check_trainer(trainer: Any, *, steps: int = 3, rewards: bool = True) -> Mapping[str, Any]:
    """Train so many optimizer steps, check them, print what was found and return it.

    The trainer is as before afterwards: weights, random numbers, and no step made. rewards: whether the reward
    functions are called again, which costs what they cost. Of several processes the first checks and prints, and all
    return the same.
    """
    try:
        if getattr(trainer, "is_deepspeed_enabled", False):
            raise InputError("DeepSpeed's engine cannot be put back; use the command, or LiveCheck")
        ranks = _met(trainer.accelerator)
    except InputError as error:
        warn(f"nothing is checked: {error}")
        return {}
    kept = {name: tensor.detach().clone() for name, tensor in trainer.model.named_parameters()}
    recorder = Recorder(
        trainer, steps=steps, rewards=rewards, beat=Beats(ranks) if ranks else _ignore
    )
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - users' functions draw from it
    with torch.random.fork_rng():
        try:
            record, ran = watched(recorder, trainer, trainer.train)
        except BaseException as error:
            if ranks:
                ranks.ended(reason(error))
            raise
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
            with torch.no_grad():
                before = recorder.record.weights[0] if recorder.cut.weights else kept
                for name, tensor in trainer.model.named_parameters():
                    piece = local(tensor)
                    piece.copy_(before[name].view_as(piece))
                    tensor.grad = None
            trainer.optimizer = trainer.lr_scheduler = None
            trainer.state = TrainerState()
            for name, value in (("_step", 0), ("_buffered_inputs", None)):
                if hasattr(trainer, name):
                    setattr(trainer, name, value)
    return _answered(record, recorder.cut, ran, ranks)


def _answered(record: Record, cut: Cut, ran: float, ranks: Ranks | None) -> Mapping[str, Any]:
    """Return what the check says of all processes' parts, which the first of them prints."""
    whole: Record | None = record
    if ranks:
        whole = together(record, cut, ranks, partial(ranks.check, time.time(), _LIMIT))
    if whole is None:
        assert ranks is not None
        return ranks.wait() or {}
    answer: Mapping[str, Any] = {}
    try:
        answer = checked(whole, ran)
        print(answer_text(answer))
    finally:
        if ranks:
            ranks.conclude(answer)
    return answer


class LiveCheck(TrainerCallback):  # type: ignore[misc] # transformers' types are not read
    """Checks one update every so many optimizer steps of a run, which goes on.

        trainer.add_callback(LiveCheck(trainer, every=100))

    Each time a line is printed and TRL logs `check/deviates` (0 or 1) and `check/share`, the largest share of a tolerance;
    of several processes the first one does, for all. Reward functions are not called
    again unless `rewards` says so. Whatever fails here is a warning, and the run goes on.
    """

    def __init__(self, trainer: Any, *, every: int = 100, rewards: bool = False) -> None:
        self._trainer, self._every, self._rewards = trainer, every, rewards
        self._own = trainer.optimizer is not None
        make_watchable()  # before FSDP2 takes hold of the model's method
        self._recorder: Recorder | None = None
        self._seams = Seams()
        self.answers: list[dict[str, Any]] = []
        self._ranks: Ranks | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin to record, where it is time."""
        if self._recorder is None and state.global_step % self._every == 0:
            self._seams.safely("weights", self._with_others, self._begin)

    def _with_others(self, function: Callable[..., None], *given: Any) -> None:
        """Call a function; where it fails, the first process is told so and waits no longer."""
        try:
            function(*given)
        except Exception as error:
            if self._ranks:
                self._ranks.ended(reason(error))
            raise

    def _begin(self) -> None:
        self._ranks = None
        self._ranks = _met(self._trainer.accelerator)
        recorder = Recorder(
            self._trainer, steps=1, most=1, rewards=self._rewards, own=self._own, still=False
        )
        try:
            recorder.attach()
            recorder.begin()
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
            self._seams.safely(
                "the check", self._with_others, self._check, recorder, state.global_step
            )

    def _check(self, recorder: Recorder, step: int) -> None:
        ran = time.perf_counter() - self._started
        recorder.detach()
        record, ranks = recorder.part(), self._ranks
        if ranks:
            whole = together(record, recorder.cut, ranks, partial(ranks.check, time.time(), _LIMIT))
            if whole is None:
                return
            ranks.leave()
            record = whole
        answer = checked(record, ran)
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
        if self._ranks and not self._ranks.rank:
            self._ranks.leave()
