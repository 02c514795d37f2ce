"""The processes that train together: one, or those that `accelerate launch` starts.

With several, the main one rolls out and records, and each computes the gradient of its share of the
batch, on a model of its own (DDP) or on shards of one (DeepSpeed's ZeRO). Denominators are those of
the whole batch, so the gradient is that of one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, distributed

from rlvr_debug.errors import InputError
from rlvr_debug.grpo.policy import Policy, StageModule
from rlvr_debug.grpo.sequences import Batch
from rlvr_debug.grpo.settings import TrainingSettings

__all__ = ["LaunchedProcesses", "Processes", "current_processes"]


class Processes:
    """One process, for which there is nothing to share."""

    rank = 0
    size = 1
    sharded = False  # whether a process holds only parts of the model

    @property
    def main(self) -> bool:
        return self.rank == 0

    def prepare(
        self, policy: Policy, optimizer: torch.optim.Optimizer
    ) -> tuple[Policy, torch.optim.Optimizer]:
        return policy, optimizer

    def broadcast(self, batch: Batch | None) -> Batch:
        """The main process' batch, everywhere."""
        assert batch is not None
        return batch

    def broadcast_values(self, values: Tensor | None, length: int) -> Tensor:
        """The main process' values, everywhere. values: [length]."""
        assert values is not None
        return values

    def share(self, batch: Batch) -> Tensor:
        """Which rows of the batch are this process', as many as any other's: [b]."""
        return torch.arange(len(batch.ids))

    def gather(self, values: Tensor, batch: Batch) -> Tensor:
        """Every process' values of its share, [b, t], as those of the batch, [B, T]."""
        return values

    def total(self, value: float) -> float:
        """The sum over processes."""
        return value

    def accumulating(self, model: Any) -> AbstractContextManager[Any]:
        """Around each micro-batch: the gradient is exchanged after the last one only."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def clip(self, policy: Policy, norm: float) -> float:
        """The gradient's norm before it is clipped to `norm`."""
        return float(torch.nn.utils.clip_grad_norm_(policy.trained, norm))

    def whole(self, policy: Policy) -> AbstractContextManager[Any]:
        """Inside, every process sees all of the model's weights. All processes enter together."""
        return nullcontext()


class LaunchedProcesses(Processes):
    """Several processes, or one with a GPU or DeepSpeed."""

    def __init__(self, settings: TrainingSettings) -> None:
        from accelerate import Accelerator
        from accelerate.utils import DeepSpeedPlugin, DistributedType

        plugin = None
        if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
            plugin = DeepSpeedPlugin(
                gradient_accumulation_steps=settings.gradient_accumulation_steps,
                gradient_clipping=settings.max_grad_norm,
            )
            plugin.deepspeed_config["gradient_clipping"] = settings.max_grad_norm
        self._accelerator = Accelerator(
            mixed_precision="bf16" if settings.bf16 else "no",
            gradient_accumulation_steps=settings.gradient_accumulation_steps,
            deepspeed_plugin=plugin,
        )
        # of torch: without a GPU, accelerate takes DeepSpeed's processes for one each
        if distributed.is_initialized():
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.sharded = self._accelerator.distributed_type == DistributedType.DEEPSPEED
        sequences = settings.prompts_per_step * settings.group_size
        if sequences % self.size:
            raise InputError(
                f"training: prompts_per_step * group_size is {sequences}, expected a multiple of "
                f"the {self.size} processes"
            )
        if plugin is not None:
            # without a data loader DeepSpeed wants to be told; it only checks that they agree
            plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = 1
            plugin.deepspeed_config["train_batch_size"] = (
                self.size * settings.gradient_accumulation_steps
            )
        # DDP and DeepSpeed take means over processes and micro-batches; ours are sums
        self._scale = self.size * settings.gradient_accumulation_steps

    def prepare(
        self, policy: Policy, optimizer: torch.optim.Optimizer
    ) -> tuple[Policy, torch.optim.Optimizer]:
        if policy.reference is not None:
            policy.reference.to(self._accelerator.device)
        engine, prepared = self._accelerator.prepare(StageModule(policy.model), optimizer)
        return replace(policy, engine=engine), prepared

    def broadcast(self, batch: Batch | None) -> Batch:
        shape = torch.tensor(batch.ids.shape if batch is not None else [0, 0])
        rows, width = self._send(shape).tolist()
        # one message: a double holds ids, masks and single-precision values exactly
        packed = torch.zeros(len(fields(Batch)), rows, width, dtype=torch.float64)
        if batch is not None:
            packed = torch.stack([getattr(batch, f.name).double() for f in fields(Batch)])
        values = dict(zip((f.name for f in fields(Batch)), self._send(packed), strict=True))
        types = {"ids": torch.long, "sampler": torch.float32}
        return Batch(**{name: t.to(types.get(name, torch.bool)) for name, t in values.items()})

    def broadcast_values(self, values: Tensor | None, length: int) -> Tensor:
        return self._send(torch.zeros(length) if values is None else values.float())

    def _send(self, tensor: Tensor) -> Tensor:
        sent = tensor.contiguous().to(self._accelerator.device)
        if self.size > 1:
            distributed.broadcast(sent, src=0)
        return sent.cpu()

    def _collect(self, tensor: Tensor) -> Tensor:
        """Every process' tensor, of the same shape, one after the other: [size * n, ...]."""
        if self.size == 1:
            return tensor
        own = tensor.contiguous().to(self._accelerator.device)
        found = [torch.empty_like(own) for _ in range(self.size)]
        distributed.all_gather(found, own)
        return torch.cat(found).cpu()

    def share(self, batch: Batch) -> Tensor:
        # by length, dealt out in turn: every process has long and short ones
        return batch.real.sum(1).argsort(stable=True)[self.rank :: self.size]

    def gather(self, values: Tensor, batch: Batch) -> Tensor:
        rows = self.share(batch)
        padded = values.new_zeros(len(rows), batch.ids.shape[1])
        padded[:, : values.shape[1]] = values
        whole = padded.new_zeros(len(rows) * self.size, batch.ids.shape[1])
        whole[self._collect(rows)] = self._collect(padded)
        return whole

    def total(self, value: float) -> float:
        values = torch.tensor([value], dtype=torch.float64, device=self._accelerator.device)
        if self.size > 1:
            distributed.all_reduce(values)
        return float(values)

    def accumulating(self, model: Any) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._accelerator.accumulate(model)
        return context

    def backward(self, loss: Tensor) -> None:
        self._accelerator.backward(loss * self._scale)

    def clip(self, policy: Policy, norm: float) -> float:
        # DeepSpeed has clipped and stepped by now, and gives the norm before
        return float(self._accelerator.clip_grad_norm_(policy.trained, norm))

    @contextmanager
    def whole(self, policy: Policy) -> Iterator[None]:
        if not self.sharded:
            yield
            return
        from deepspeed.runtime.zero import GatheredParameters

        with GatheredParameters(list(policy.model.parameters())):
            yield


def current_processes(settings: TrainingSettings) -> Processes:
    """As this process was started: by `accelerate launch` or torchrun, or alone."""
    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1 or torch.cuda.is_available()
    if launched or os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        return LaunchedProcesses(settings)
    return Processes()
