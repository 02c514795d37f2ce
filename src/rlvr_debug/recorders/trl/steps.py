"""Watches the optimizer: gradients as it reads them, the weights and the state that it leaves."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rlvr_debug.recorders.keeping import (
    Snapshots,
    gradients_of,
    groups_of,
    kind_of,
    names_of,
    parts_of,
    state_of,
    whole_norms,
)
from rlvr_debug.recorders.pieces import Cut, Zero
from rlvr_debug.recorders.trl.losses import LossWatch, Watching
from rlvr_debug.recorders.trl.seams import Seams
from rlvr_debug.recorders.trl.settings import asked_optimizer
from rlvr_debug.replay.record import Record, Update
from rlvr_debug.replay.segments.gradient import norm, norm_as_summed


class StepWatch(LossWatch):
    """The part of the recorder that watches optimizer steps; what else it reads, the recorder sets."""

    record: Record
    _trainer: Any
    _model: Any
    _weights: Snapshots
    _own: bool
    _steps: int
    _most: int

    def __init__(self, seams: Seams) -> None:
        super().__init__(seams)
        self._made = 0  # optimizer steps
        self._norms: tuple[float, float] | None = None
        self._clipped_squares = 0.0
        self.cut = Cut()
        # DeepSpeed's, which steps where others end their backward pass
        self._zero: Zero | None = None

    def _backward(self, loss: Tensor, *_: Any, **__: Any) -> Watching:
        if self._micro is not None:
            self._micro.loss = float(loss.detach())
        yield
        if self._update.micro_batches and not self._zero:
            self._update.gradients = gradients_of(self._model, self.record)
            if self.record.elements and getattr(self._trainer.accelerator, "sync_gradients", True):
                self._norms = whole_norms(self._model)

    def before_step(self) -> None:
        """Take note of what the optimizer reads."""
        if not self._zero:
            self._seams.safely("optimizer's steps", self._before_step)

    def _before_step(self) -> None:
        update = self._update
        self._began_step(update, self._optimizer(), self._optimizer().param_groups)
        update.clipped = gradients_of(self._model, self.record)
        if self._norms:
            before, summed = self._norms
            update.norms, self._norms = (before, whole_norms(self._model)[0], summed), None
        update.state = state_of(self._optimizer(), names_of(self._model), self.record)

    def _began_step(self, update: Update, optimizer: Any, groups: Any) -> None:
        update.before = self._weights.take()
        micros = update.micro_batches
        update.touched = bool(micros) and update.before != micros[-1].weights
        update.optimizer = kind_of(type(optimizer))
        asked = {} if self._own else {**optimizer.defaults, **asked_optimizer(self._trainer)[1]}
        update.groups = groups_of(groups, names_of(self._model), asked)

    def _engine_step(self, *_: Any, **__: Any) -> Watching:
        """Take note of a step of DeepSpeed's engine: it clips, and has its optimizer step once or more often."""
        update, zero = self._update, self._zero
        assert zero is not None
        self._began_step(update, zero.optimizer, zero.groups())
        found = zero.gradients()
        update.gradients, update.clipped = parts_of(found, self.record), {}
        update.state = zero.state(self.record)
        if self.record.elements:
            self._norms = norm(found), norm_as_summed(found)
            self._clipped_squares = 0.0
        yield
        if self._norms:
            before, summed = self._norms
            update.norms, self._norms = (before, self._clipped_squares**0.5, summed), None
        update.after = self._weights.take(new=bool(self.cut.weights))
        update.state_after = zero.state(self.record)

    def _inner_step(self, *_: Any, **__: Any) -> Watching:
        zero, held = self._zero, self._update.clipped
        if zero is None or held is None:
            return
        found = zero.stepping()
        held.update(parts_of(found, self.record))
        self._clipped_squares += norm(found) ** 2
        yield

    def after_step(self) -> None:
        """Take note of what the optimizer left."""
        if not self._zero:
            self._seams.safely("optimizer's steps", self._after_step)

    def _after_step(self) -> None:
        self._update.after = self._weights.take(new=bool(self.cut.weights))
        names = names_of(self._model)
        self._update.state_after = state_of(self._optimizer(), names, self.record)

    def end_step(self) -> bool:
        """Close the update; return whether all that is wanted was recorded, or will never be."""
        self._made += 1
        wanted = self._seams.safely("updates", self._end_step)
        return bool(wanted) or (bool(self._seams.failed) and self._made >= self._steps)

    def _end_step(self) -> bool:
        if self._update.micro_batches or self._seams.failed:
            self.record.updates.append(self._update)
        self._update, self._micro = Update(before=self._update.after), None
        updates = self.record.updates
        trained = {micro.generation for update in updates for micro in update.micro_batches}
        enough = len(updates) >= self._steps and len(trained) >= min(2, self._steps)
        return enough or len(updates) >= max(self._most, self._steps)

    def _optimizer(self) -> Any:
        optimizer = self._trainer.optimizer
        return getattr(optimizer, "optimizer", optimizer)
