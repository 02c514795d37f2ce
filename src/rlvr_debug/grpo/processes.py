"""The processes that train together: one, or those that `accelerate launch` starts.

With several, the main one rolls out and records, and each computes the gradient of its share of the batch, on a model of
its own (DDP) or on shards of one (ZeRO). Denominators are the whole batch's, so the gradient is that of one process.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from rlvr_debug.errors import InputError
from rlvr_debug.grpo.loss import Batch
from rlvr_debug.grpo.policy import Policy, StageModule
from rlvr_debug.grpo.settings import TrainingSettings

Made = TypeVar("Made")


class Processes:
    """One process, which has nothing to share."""

    rank = 0
    size = 1
    sharded = False  # whether a process holds only parts of the model

    @property
    def main(self) -> bool:
        """Say whether this is the process that rolls out and records."""
        return self.rank == 0

    def prepare(
        self, policy: Policy, optimizer: torch.optim.Optimizer
    ) -> tuple[Policy, torch.optim.Optimizer]:
        """Return policy and optimizer as the processes share them."""
        return policy, optimizer

    def on_main(self, policy: Policy, act: Callable[[], None]) -> None:
        """Run `act` in the main process alone, which sees all of the policy's weights meanwhile."""
        with self.whole(policy):
            if self.main:
                act()

    def broadcast(self, make: Callable[[], Made]) -> Made:
        """Return what the main process makes, on the CPU, in every process."""
        return make()

    def share(self, batch: Batch) -> Tensor:
        """Return which rows of the batch are this process', as many as any other's: [b]."""
        return torch.arange(len(batch.ids))

    def gather(self, values: Tensor, batch: Batch) -> Tensor:
        """Return every process' values of its share, [b, t], as those of the batch, [B, T]."""
        return values

    def total(self, value: float) -> float:
        return value

    def accumulating(self, model: Any) -> AbstractContextManager[Any]:
        """Open around each micro-batch: the gradient is exchanged after the last one only."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def clip(self, policy: Policy, norm: float) -> float:
        """Clip the gradient's norm to `norm` and return what it was before."""
        return float(torch.nn.utils.clip_grad_norm_(policy.trained, norm))

    def whole(self, policy: Policy) -> AbstractContextManager[Any]:
        """Open a context in which every process sees all weights. All processes enter together."""
        return nullcontext()


class LaunchedProcesses(Processes):
    """Several processes, or one that has a GPU or DeepSpeed."""

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
        # torch is asked: without a GPU, accelerate takes DeepSpeed's processes for one each
        if distributed.is_initialized():
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.sharded = self._accelerator.distributed_type == DistributedType.DEEPSPEED
        sequences = settings.prompts_per_step * settings.group_size
        if sequences % self.size:
            raise InputError(
                f"training: prompts_per_step * group_size is {sequences}, but must be "
                f"divisible by the {self.size} processes"
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
        return replace(policy, engine=engine, sharded=self.sharded), prepared

    def broadcast(self, make: Callable[[], Made]) -> Made:
        sent: list[Any] = [make() if self.main else None]
        if self.size > 1:
            distributed.broadcast_object_list(sent, src=0, device=self._accelerator.device)
        made: Made = sent[0]
        return made

    def share(self, batch: Batch) -> Tensor:
        # by length, dealt out in turn: every process has long and short ones
        return batch.real.sum(1).argsort(stable=True)[self.rank :: self.size]

    def gather(self, values: Tensor, batch: Batch) -> Tensor:
        shares = [(self.share(batch), values)]
        if self.size > 1:
            shares *= self.size
            distributed.all_gather_object(shares, shares[0])
        whole = values.new_zeros(batch.ids.shape)
        for rows, found in shares:
            whole[rows, : found.shape[1]] = found
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

    def whole(self, policy: Policy) -> AbstractContextManager[Any]:
        if not self.sharded:
            return super().whole(policy)
        from deepspeed.runtime.zero import GatheredParameters

        gathered: AbstractContextManager[Any] = GatheredParameters([*policy.model.parameters()])
        return gathered


def current_processes(settings: TrainingSettings) -> Processes:
    """Return the processes that a launcher (`accelerate launch`, torchrun) started, or this one alone."""
    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1 or torch.cuda.is_available()
    if launched or os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        return LaunchedProcesses(settings)
    return Processes()
