"""Watches a training step: what a loss reads, its gradients, and the optimizer, what it reads and what it leaves."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlvr_debug.recorders import keeping
from rlvr_debug.recorders.trl.objects import placed
from rlvr_debug.recorders.trl.passes import in_order, joined, read_on, unpacked
from rlvr_debug.recorders.trl.read_off import read_off
from rlvr_debug.recorders.trl.seams import Seams, Watching
from rlvr_debug.recorders.trl.settings import asked_options, means_optimizer
from rlvr_debug.replay.record import Batch, Forward, MicroBatch, Record, Update
from rlvr_debug.replay.segments.gradient import less, norm, norm_as_summed, product

_ASKING = "log-probabilities"
_SAME = 1e-4  # of a gradient's norm


class StepWatch:
    """Fills an update and its micro-batches; what else it reads, the recorder sets. Methods with an underscore are hooks."""

    record: Record
    _trainer: Any
    _model: Any
    _policy: Sequence[Any]
    _weights: keeping.Snapshots
    _own: bool
    _steps: int
    _most: int

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._phase = ""
        self._update = Update()
        self._micro: MicroBatch | None = None
        self._listed: Tensor | None = None  # of the micro-batch's tokens in what a loss reads
        self._likeness = 0  # of the log-probabilities that the micro-batch has
        self._passing = False  # the policy makes a forward pass
        self._partial = False  # a forward pass of the log-probabilities that are asked for was seen
        self._rows = 0  # of the micro-batch, in forward passes that the loss itself makes
        self._read: dict[int, Sequence[Tensor]] = {}  # what it reads of each, by its first row
        self._made = 0  # optimizer steps
        self._counts: list[int] = []  # of the schedule, at each of them
        self._norms: tuple[float, float] | None = None
        self._unsynced = (
            False  # the last backward pass left a gradient that is not averaged over processes
        )
        self._clipped_squares = 0.0
        self.cut = keeping.Cut()
        # DeepSpeed's, which steps where others end their backward pass
        self._zero: keeping.Zero | None = None

    def _begin_micro(self, micro: MicroBatch) -> None:
        self._micro, self._likeness, self._rows, self._read = micro, 0, 0, {}
        self._update.micro_batches.append(micro)

    @contextmanager
    def _in(self, phase: str) -> Iterator[None]:
        before, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = before

    def _logprobs(self, *given: Any, **named: Any) -> Watching:
        """Take note of log-probabilities of the batch that is trained on, and of others that the loss reads too."""
        micro, before = self._micro, None if self._micro is None else self._micro.forward
        self._partial = False
        with self._in(f"{self._phase} {_ASKING}"):
            out = yield
        if "loss" not in self._phase or micro is None:
            return out
        told = tuple(out.values()) if isinstance(out, dict) else out
        values = told if isinstance(told, tuple) else (told,)
        whole = self._widened(micro, values[0])
        likeness = self._like(micro, whole, named.get("input_ids", (*given, None, None)[1]))
        if likeness < max(self._likeness, 1):
            micro.forward = before
            self._watch(values[0], lambda gradient: _add_other(micro, gradient))
            return out
        if likeness > self._likeness:
            micro.grad_logprobs = micro.grad_entropies = None
        self._likeness = likeness
        entropies = values[1] if len(values) > 1 else None
        if isinstance(values[0], Tensor) and values[0].requires_grad:
            micro.logprobs = keeping.kept(whole)
            self._watch(values[0], partial(self._add, micro, "grad_logprobs"))
        elif self._of_reference((*given, None)[0]):  # TRL 0.18 asks for them in the loss
            micro.given = replace(micro.given, reference=keeping.kept(whole))
        if isinstance(entropies, Tensor):
            micro.entropies = keeping.kept(self._widened(micro, entropies))
            self._watch(entropies, partial(self._add, micro, "grad_entropies"))
        return out

    def _inner_loss(self, trainer: Any, _: Any, inputs: Any, *__: Any, **___: Any) -> Watching:
        """Take note of the old log-probabilities that an override of TRL's loss hands on to it."""
        micro, old = self._micro, inputs.get("old_per_token_logps")
        if trainer is self._trainer and micro is not None and isinstance(old, Tensor):
            known = micro.given.old
            if (
                known is not None
                and known.shape == old.shape
                and not torch.equal(known, keeping.kept(old))
            ):
                micro.given = replace(micro.given, old=keeping.kept(old))
        yield

    def _of_reference(self, model: Any) -> bool:
        """Return whether a model is the reference, as which the policy serves while its adapter is off."""
        other = getattr(self._trainer, "ref_model", None)
        if other is not None:
            return model is other
        modules = self._model.modules()
        return any(getattr(module, "disable_adapters", False) is True for module in modules)

    def _like(self, micro: MicroBatch, logprobs: Any, ids: Any) -> int:
        """Return how like the trained batch's log-probabilities are: 2 of its tokens, 1 of its shape, 0 neither."""
        wanted = micro.given.completion_ids
        if not isinstance(logprobs, Tensor) or logprobs.shape != wanted.shape:
            return 0
        if not isinstance(ids, Tensor):
            return 1
        return 2 if self._columns(micro.given, ids) else 1

    def _columns(self, batch: Batch, ids: Tensor) -> int:
        """Return how many columns of the batch's completions these tokens end with; 0 where they do not.

        Columns that are padding in all rows may be cut off.
        """
        wanted = batch.completion_ids
        widths = (n for n in (wanted.shape[1], int(batch.completion_mask.any(0).sum())) if n)
        return next((n for n in widths if torch.equal(ids[:, -n:].cpu(), wanted[:, :n])), 0)

    def _widened(self, micro: MicroBatch, values: Any) -> Any:
        """Return numbers by token as wide as the batch, where columns that are padding in all rows were cut off."""
        whole, mask = placed(values, self._listed), micro.given.completion_mask
        if not isinstance(whole, Tensor) or whole.dim() != 2 or whole.shape[0] != len(mask):
            return whole
        more = mask.shape[1] - whole.shape[1]
        return pad(whole, (0, more)) if more > 0 and not mask[:, -more:].any() else whole

    def _watch(self, values: Any, note: Callable[[Tensor], None]) -> None:
        if isinstance(values, Tensor) and values.requires_grad:
            values.register_hook(self._seams.guarded("gradients", note))  # type: ignore[no-untyped-call]

    def _add(self, micro: MicroBatch, name: str, gradient: Tensor) -> None:
        """Keep a gradient. Two parts of a loss add up; the same pass made again is none of the loss, but of the gradient."""
        before, gradient = getattr(micro, name), keeping.kept(self._widened(micro, gradient))
        if before is None or not torch.equal(before, gradient):
            setattr(micro, name, gradient if before is None else before + gradient)

    def _forward(self, model: Any, *given: Any, **named: Any) -> Watching:
        micro, ours = self._micro, any(model is part for part in self._policy)
        if not ours or self._passing or "loss" not in self._phase or micro is None:
            return
        if not torch.is_grad_enabled() or not (micro.logprobs is None or _ASKING in self._phase):
            return
        # behind hooks of the user's, which may change what the model reads
        reads = partial(self._reads, micro)
        hook = model.register_forward_pre_hook(
            self._seams.guarded("forward passes", reads), with_kwargs=True
        )
        self._passing = True
        try:
            out = yield
        finally:
            self._passing = False
            hook.remove()
        ids, logits = named.get("input_ids", (*given, None)[0]), getattr(out, "logits", None)
        if _ASKING not in self._phase and isinstance(ids, Tensor):
            if isinstance(logits, Tensor):
                note = partial(self._read_off, micro, self._rows, logits.detach(), ids)
                self._watch(logits, note)
            self._rows += len(ids)

    def _read_off(
        self, micro: MicroBatch, first: int, logits: Tensor, ids: Tensor, gradient: Tensor
    ) -> None:
        """Take note of what a loss reads of forward passes of its own, which together are one over the batch. first: row."""
        batch = micro.given
        if micro.logprobs is not None or self._rows != len(batch.completion_ids):
            return
        own = batch.of_rows(torch.arange(first, first + len(logits)))
        width = self._columns(own, ids)
        if not width or logits.dim() != 3 or logits.shape[1] <= width:
            return
        if gradient[:, : -width - 1].any() or gradient[:, -1].any():
            return  # it reads tokens of the prompt too
        read, by = (each[:, -width - 1 : -1] for each in (logits, gradient))
        heats = (float(getattr(self._trainer, "temperature", 1.0)), 1.0)
        found = read_off(read, by, ids[:, -width:], heats)
        if found is None:
            return
        more = batch.completion_ids.shape[1] - width
        self._read[first] = [pad(keeping.kept(each), (0, more)) for each in found]
        # a loss takes a logit from a sum of such size, in the type that logits have or a finer one
        off = torch.finfo(read.dtype).eps * float(read.abs().max()) / min(heats)
        micro.rounding = max(micro.rounding, off)
        if sum(len(part[0]) for part in self._read.values()) == self._rows:
            parts = zip(*(self._read[row] for row in sorted(self._read)), strict=True)
            micro.logprobs, micro.grad_logprobs = map(torch.cat, parts)

    def _reads(self, micro: MicroBatch, _: Any, given: Sequence[Any], named: Any) -> None:
        ids = named.get("input_ids", given[0] if given else None)
        tensors = (ids, named.get("attention_mask"), named.get("position_ids"))
        forward = Forward(*(None if t is None else keeping.kept(t) for t in tensors))  # type: ignore[arg-type]
        forward = self._of_rows(unpacked, forward, micro) or forward
        whole = joined(micro.forward, forward, len(micro.given.prompt_ids))
        forward = whole if (self._partial or self._rows) and whole else forward
        micro.forward = self._of_rows(in_order, forward, micro) or forward
        cache = named.get("past_key_values")
        # -1: of a tuple, whose length is not known
        before = int(getattr(cache, "get_seq_length", lambda: -1)())
        if cache is not None and before:
            micro.forward = read_on(micro.given, before, forward)
        self._partial = _ASKING in self._phase

    def _of_rows(
        self, read: Callable[[Forward, Batch], Forward | None], forward: Forward, micro: MicroBatch
    ) -> Forward | None:
        """Return a pass as `read` finds the batch's rows in it, padded as the batch is; None where it does not."""
        return read(forward, micro.given)

    # --- the optimizer

    def _backward(self, loss: Tensor, *_: Any, **__: Any) -> Watching:
        if self._micro is not None:
            self._micro.loss = float(loss.detach())
        yield
        wrapped = getattr(self._trainer, "model_wrapped", None)
        self._unsynced = getattr(wrapped, "require_backward_grad_sync", True) is False
        if self._update.micro_batches and not self._zero:
            self._update.gradients = keeping.gradients_of(self._model, self.record)
            if self.record.elements and getattr(self._trainer.accelerator, "sync_gradients", True):
                self._norms = keeping.whole_norms(self._model)

    def _clip(self, *_: Any, **__: Any) -> Watching:
        """Take note of gradients that are put back, or multiplied by a number, between the last backward pass and the clip."""
        update = self._update
        if update.gradients is not None and not (self._zero or self.cut.weights):
            now = keeping.gradients_of(self._model, self.record)
            if self._unsynced or not norm(update.gradients):
                self._averaged(now)
            elif norm(now):
                size = norm(update.gradients) ** 2
                along = product(now, update.gradients) / size
                scaled = {name: each * along for name, each in update.gradients.items()}
                if norm(less(now, scaled)) < _SAME * norm(now):
                    update.rescaled = along
        yield

    def _averaged(self, gradients: dict[str, Tensor]) -> None:
        """Take these gradients for what backward left, where DDP was kept from averaging it: the user does so afterwards."""
        self._update.gradients, self._unsynced = gradients, False
        if self._norms:
            self._norms = keeping.whole_norms(self._model)

    def before_step(self) -> None:
        if not self._zero:
            self._seams.safely("optimizer's steps", self._before_step)

    def _before_step(self) -> None:
        update, optimizer = self._update, self._optimizer()
        self._began_step(update, optimizer, optimizer.param_groups)
        update.clipped = keeping.gradients_of(self._model, self.record)
        if self._unsynced and update.gradients is not None:
            self._averaged(update.clipped)
        if self._norms:
            before, summed = self._norms
            update.norms, self._norms = (before, keeping.whole_norms(self._model)[0], summed), None
        update.state = keeping.state_of(optimizer, keeping.names_of(self._model), self.record)

    def _began_step(self, update: Update, optimizer: Any, groups: Any) -> None:
        schedule = self._trainer.lr_scheduler
        self._counts.append(getattr(getattr(schedule, "scheduler", schedule), "last_epoch", 0))
        update.before = self._weights.take()
        micros = update.micro_batches
        update.touched = bool(micros) and update.before != micros[-1].weights
        update.optimizer = keeping.kind_of(type(optimizer))
        if not self._own and means_optimizer(
            self._trainer, update.optimizer, optimizer.param_groups
        ):
            self.record.settings = replace(self.record.settings, optimizer="")
        asked = {} if self._own else asked_options(self._trainer, optimizer)
        update.groups = keeping.groups_of(groups, keeping.names_of(self._model), asked)

    def _engine_step(self, *_: Any, **__: Any) -> Watching:
        """Take note of a step of DeepSpeed's engine: it clips, and has its optimizer step once or more often."""
        update, zero = self._update, self._zero
        assert zero is not None
        self._began_step(update, zero.optimizer, zero.groups())
        found = zero.gradients()
        update.gradients, update.clipped = keeping.parts_of(found, self.record), {}
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
        held.update(keeping.parts_of(found, self.record))
        self._clipped_squares += norm(found) ** 2
        yield

    def after_step(self) -> None:
        if not self._zero:
            self._seams.safely("optimizer's steps", self._after_step)

    def _after_step(self) -> None:
        self._update.after = self._weights.take(new=bool(self.cut.weights))
        names = keeping.names_of(self._model)
        self._update.state_after = keeping.state_of(self._optimizer(), names, self.record)

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


def _add_other(micro: MicroBatch, gradient: Tensor) -> None:
    micro.others += float(gradient.detach().double().norm())


def rescaled(micro: MicroBatch, gradient: Tensor) -> None:
    """Take note of what a loss was multiplied by: of the gradient that comes back to it."""
    if gradient.numel() == 1:
        micro.rescaled = float(gradient)
