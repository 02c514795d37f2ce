"""Check a GRPOTrainer that is there: in a script, in a notebook, or every so many steps of a long run."""

import copy
import itertools
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import TrainerCallback, TrainerState

from rlvr_debug.errors import InputError, reason
from rlvr_debug.recorders.keeping import Cut, local, parameters_of
from rlvr_debug.recorders.ranks import merged
from rlvr_debug.recorders.trl.launched import Ranks, launched
from rlvr_debug.recorders.trl.recorder import Recorder
from rlvr_debug.recorders.trl.reward_calls import same_numbers
from rlvr_debug.recorders.trl.sampler_calls import in_sampled_order, make_watchable
from rlvr_debug.recorders.trl.seams import Seams, warn
from rlvr_debug.replay.answer import answer_text
from rlvr_debug.replay.finding import NOT_SEEN
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.store import answered, read_part, write_record

_POLL = 0.05
_LIMIT = 600.0  # seconds in which a rank has to record something
_meetings = itertools.count()  # of processes; all of them count alike


class Steps(TrainerCallback):  # type: ignore[misc] # transformers' types are not read
    """Tells a recorder of the optimizer's steps, and ends the training when it has enough."""

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder

    def __reduce__(self) -> Any:
        """Have copies record nothing."""
        return TrainerCallback, ()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        if self._recorder:
            self._recorder.begin()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        if self._recorder:
            self._recorder.before_step()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        if self._recorder:
            self._recorder.after_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Save nothing, and evaluate between the recorded steps if that is short: it may leave something behind."""
        recorder = self._recorder
        if recorder and recorder.end_step():
            control.should_training_stop, recorder = True, None
        if control.should_evaluate:
            control.should_evaluate = recorder is not None and recorder.evaluates()
        control.should_save = False
        return control


def recorded(
    trainer: Any, run: Callable[[], Any], *, steps: int, rewards: bool
) -> tuple[Record, float]:
    """Return the record of so many optimizer steps of the trainer, and the seconds that they took; otherwise as `watched`."""
    return watched(Recorder(trainer, steps=steps, rewards=rewards), trainer, run)


def watched(recorder: Recorder, trainer: Any, run: Callable[[], Any]) -> tuple[Record, float]:
    """Return the recorder's record of a training, of several processes this one's part, and the seconds that it took.

    run: trains, and returns when a callback stops it.
    """
    callback = Steps(recorder)
    if recorder.record.elements:  # before it takes minutes and memory
        print("\n".join(recorder.record.notes), file=sys.stderr, flush=True)
    recorder.attach()
    trainer.add_callback(callback)
    started = time.perf_counter()
    try:
        run()
    except BaseException:
        recorder.undo()
        raise
    finally:
        trainer.remove_callback(callback)
    recorder.detach()
    ran = time.perf_counter() - started
    recorder.take_saved()
    return recorder.part(), ran


def need_replicas(accelerator: Any) -> None:
    """Raise InputError, one line, where a training is of a kind that is not recorded yet."""
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if accelerator.num_processes < 2:
        return
    if kind == "MEGATRON_LM":
        others = "DDP, FSDP and DeepSpeed's ZeRO are"
        raise InputError(f"{kind} shards the model in a way that cannot be recorded: {others}")
    fsdp1 = kind == "FSDP" and not getattr(accelerator, "is_fsdp2", False)
    if fsdp1 and not accelerator.state.fsdp_plugin.use_orig_params:
        said = "has one parameter stand for all of a layer"
        raise InputError(f"FSDP's first version {said}: set `use_orig_params: true`, or FSDP2")


def together(
    record: Record, cut: Cut, ranks: Ranks | None, limit: float | None = None
) -> Record | None:
    """Return the record of all ranks on the first of them, when all have written their parts; None on the others.

    limit: seconds in which each has to record something; None where another process sees to that.
    """
    if ranks is None:
        return record
    if ranks.rank:
        write_record(record, ranks.part(ranks.rank))
        return None
    begun = time.time()
    ranks.part(0).mkdir()
    others = [ranks.part(rank) for rank in range(1, ranks.size)]
    while not all(each.exists() for each in others):
        if limit is not None:
            ranks.check(begun, limit)
        time.sleep(_POLL)
    return in_sampled_order(merged([record, *map(read_part, others)], cut))


def _met(accelerator: Any) -> Ranks | None:
    """Return where the processes of a training meet this time; None of one process."""
    size, rank = accelerator.num_processes, accelerator.process_index
    if size < 2:
        return None
    need_replicas(accelerator)
    ranks = launched(meeting=f"check-{next(_meetings)}")
    if ranks is None or (ranks.rank, ranks.size) != (rank, size):
        said = "RANK and WORLD_SIZE say otherwise: start it with a launcher"
        raise InputError(f"the trainer is rank {rank} of {size} processes, but {said}")
    return ranks


def check_trainer(trainer: Any, *, steps: int = 3, rewards: bool = True) -> Mapping[str, Any]:
    """Train so many optimizer steps, check them, print what was found and return it; the trainer is as before afterwards.

    rewards: whether reward functions are called again, which costs what they cost. Of several processes the first prints.
    """
    try:
        ranks = _met(trainer.accelerator)
    except InputError as error:
        warn(f"nothing is checked: {error}")
        return {}
    kept = {name: tensor.detach().clone() for name, tensor in parameters_of(trainer.model).items()}
    recorder = Recorder(trainer, steps=steps, rewards=rewards, ranks=ranks)
    put_back = _optimizer_as_now(trainer)
    with same_numbers():
        try:
            record, ran = watched(recorder, trainer, trainer.train)
        except BaseException as error:
            if ranks:
                ranks.ended(reason(error))
            raise
        finally:
            with torch.no_grad():
                before = recorder.record.weights[0] if recorder.cut.weights else kept
                for name, tensor in parameters_of(trainer.model).items():
                    piece = local(tensor)
                    piece.copy_(before[name].view_as(piece))
                    tensor.grad = None
            _leave_engine(trainer)
            put_back()
            trainer.state = TrainerState()
            for name, value in (("_step", 0), ("_buffered_inputs", None)):
                if hasattr(trainer, name):
                    setattr(trainer, name, value)
    return _answered(record, recorder.cut, ran, ranks)


def _optimizer_as_now(trainer: Any) -> Callable[[], None]:
    """Return what gives a trainer its optimizer and schedule as they are now.

    It gives it none, so that it makes others, where there are none now, or its backend then has the optimizer step
    something else than the parameters.
    """
    own, schedule = trainer.optimizer, trainer.lr_scheduler
    groups = [{**group, "params": [*group["params"]]} for group in own.param_groups] if own else []
    state = {p: copy.deepcopy(held) for p, held in own.state.items()} if own else {}
    advanced = schedule and copy.deepcopy(schedule.state_dict())

    def put_back() -> None:
        trainer.optimizer = trainer.lr_scheduler = None
        now = own.param_groups if own else []
        if not own or [_ids(group) for group in now] != [_ids(group) for group in groups]:
            return
        for group, held in zip(now, groups, strict=True):
            group.clear()
            group.update(held)
        own.state.clear()
        own.state.update(state)
        if schedule:
            schedule.load_state_dict(advanced)
        trainer.optimizer, trainer.lr_scheduler = own, schedule

    return put_back


def _ids(group: Mapping[str, Any]) -> list[int]:
    return [id(parameter) for parameter in group["params"]]


def _leave_engine(trainer: Any) -> None:
    """Have DeepSpeed make another engine when the trainer trains again: one that has stepped cannot go back."""
    wrapped = getattr(trainer.accelerator, "deepspeed_engine_wrapped", None)
    if wrapped is not None:
        wrapped.engine.destroy()
        trainer.accelerator.deepspeed_engine_wrapped = trainer.deepspeed = None
        trainer.model_wrapped = trainer.model


def _answered(record: Record, cut: Cut, ran: float, ranks: Ranks | None) -> Mapping[str, Any]:
    """Return what the check says of all processes' parts, which the first of them prints."""
    whole = together(record, cut, ranks, _LIMIT)
    if whole is None:
        return (ranks and ranks.wait()) or {}
    answer: Mapping[str, Any] = {}
    try:
        answer = answered(whole, ran)
        print(answer_text(answer))
    finally:
        if ranks:
            ranks.conclude(answer)
    return answer


class LiveCheck(Steps):
    """Checks one update every so many optimizer steps of a run, which goes on.

        trainer.add_callback(LiveCheck(trainer, every=100))

    Each time a line is printed and TRL logs `check/deviates` (0 or 1) and `check/share`, the largest share of a tolerance.
    Reward functions are not called again unless `rewards` says so. Whatever fails here is a warning.
    """

    def __init__(self, trainer: Any, *, every: int = 100, rewards: bool = False) -> None:
        super().__init__(None)
        self._trainer, self._every, self._rewards = trainer, every, rewards
        self._own = trainer.optimizer is not None
        make_watchable()  # before FSDP2 takes hold of the model's method
        self._seams = Seams()
        self.answers: list[dict[str, Any]] = []
        self._ranks: Ranks | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
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
        how: Any = {"rewards": self._rewards, "own": self._own, "still": False}
        recorder = Recorder(self._trainer, steps=1, most=1, ranks=self._ranks, **how)
        try:
            recorder.attach()
            recorder.begin()
        except Exception:
            recorder.undo()
            raise
        self._recorder, self._started = recorder, time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check what was recorded. Where the update was of an older generation, the next one is waited for."""
        recorder = self._recorder
        if recorder is not None and recorder.end_step():
            self._recorder = None
            given = (self._check, recorder, state.global_step)
            self._seams.safely("the check", self._with_others, *given)

    def _check(self, recorder: Recorder, step: int) -> None:
        ran = time.perf_counter() - self._started
        recorder.detach()
        record = together(recorder.part(), recorder.cut, self._ranks, _LIMIT)
        if record is None:
            return
        if self._ranks:
            self._ranks.leave()
        answer = answered(record, ran)
        self.answers.append(answer)
        print(f"check at step {step}: {answer['answer']}", flush=True)
        shares = [e["share"] or 0.0 for e in answer["segments"] if e["status"] != NOT_SEEN]
        metrics = getattr(self._trainer, "_metrics", None)
        if metrics is not None:  # averaged and logged with TRL's own
            metrics["train"]["check/deviates"].append(float(bool(answer["first"])))
            metrics["train"]["check/share"].append(max(shares, default=0.0))

    def on_train_end(self, *_: Any, **__: Any) -> None:
        if self._recorder is not None:
            self._recorder.undo()
            self._recorder = None
        if self._ranks and not self._ranks.rank:
            self._ranks.leave()
