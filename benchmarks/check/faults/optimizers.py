"""Faults of the optimizer's step and of its schedule."""

from __future__ import annotations

from dataclasses import replace
from types import MethodType

import torch

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty

_NO_OP = ("optimizer-no-op",)


def _optimizing(case, change):
    """The case in which `change` is made to the optimizer when the trainer makes it."""

    class Trainer(case.trainer):
        def create_optimizer(self, *args):
            optimizer = super().create_optimizer(*args)
            change(self, optimizer)
            return optimizer

    return replace(case, trainer=Trainer)


def _stepping(case, step):
    """The case in which `step` is called instead, with the optimizer and its own step."""

    def instead(trainer, optimizer):
        usual = optimizer.step
        optimizer.step = MethodType(lambda own, closure=None: step(own, usual), optimizer)

    return _optimizing(case, instead)


@faulty("optimizer step", origin="library", source="TRL 6700, PR 6701", causes=_NO_OP)
def empty_optimizer(case: Case) -> Case:
    """The optimizer steps and has nothing to step on."""

    def emptied(trainer, optimizer):
        for group in optimizer.param_groups:
            group["params"] = []

    return _optimizing(case, emptied)


@faulty("optimizer step", origin="benchmark", source="workofart/ml-by-hand PR 85", causes=_NO_OP)
def weights_stored_in_bfloat16(case: Case) -> Case:
    """The optimizer stores weights in bfloat16, which rounds small updates away."""

    def rounding(optimizer, usual):
        usual()
        with torch.no_grad():
            for group in optimizer.param_groups:
                for weight in group["params"]:
                    weight.copy_(weight.bfloat16())

    return _stepping(case, rounding)


@faulty("optimizer step", origin="own", causes=_NO_OP)
def half_of_the_weights_left_out(case: Case) -> Case:
    """Half of the weights are in no group of the optimizer."""

    def halved(trainer, optimizer):
        for group in optimizer.param_groups:
            group["params"] = group["params"][::2]

    return _optimizing(case, halved)


@faulty("optimizer step", origin="own")
def step_uphill(case: Case) -> Case:
    """The optimizer maximises the loss."""

    def uphill(trainer, optimizer):
        for group in optimizer.param_groups:
            group["maximize"] = True

    return _optimizing(case, uphill)


@faulty("optimizer step", origin="own", causes=_NO_OP)
def rate_divided_by_a_hundred(case: Case) -> Case:
    """The optimizer's learning rate is a hundredth of what was asked for."""

    def slow(trainer, optimizer):
        for group in optimizer.param_groups:
            group["lr"] /= 100

    return _optimizing(case, slow)


@faulty("optimizer step", origin="own", config={"weight_decay": 0.5})
def weights_of_norms_decayed(case: Case) -> Case:
    """Weight decay holds for norms too, which were left out of it."""

    def all_alike(trainer, optimizer):
        for group in optimizer.param_groups:
            group["weight_decay"] = trainer.args.weight_decay

    return _optimizing(case, all_alike)


@faulty("optimizer step", origin="own", config={"weight_decay": 0.5})
def weight_decay_lost(case: Case) -> Case:
    """Weight decay was asked for, and there is none."""

    def without(trainer, optimizer):
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.0

    return _optimizing(case, without)


@faulty("optimizer step", origin="own")
def decay_rates_exchanged(case: Case) -> Case:
    """The two decay rates of Adam's moments are exchanged."""

    def exchanged(trainer, optimizer):
        for group in optimizer.param_groups:
            group["betas"] = group["betas"][::-1]

    return _optimizing(case, exchanged)


@faulty("optimizer step", origin="own", causes=_NO_OP)
def plain_descent_for_adam(case: Case) -> Case:
    """AdamW was asked for, and the script's subclass makes plain gradient descent."""

    class Trainer(case.trainer):
        def create_optimizer(self, *args):
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.args.learning_rate)
            return self.optimizer

    return replace(case, trainer=Trainer)


@faulty("optimizer step", origin="own", source="examples/skipped_steps", causes=_NO_OP)
def clipped_steps_skipped(case: Case) -> Case:
    """Every second step is skipped, as a loss scaler does that never settles."""
    counted = []

    def skipping(optimizer, usual):
        counted.append(1)
        if len(counted) % 2:
            usual()

    return _stepping(case, skipping)


@faulty("optimizer step", origin="own")
def moments_forgotten(case: Case) -> Case:
    """Adam's moments are cleared before each step."""

    def forgetting(optimizer, usual):
        optimizer.state.clear()
        usual()

    return _stepping(case, forgetting)


@faulty("optimizer step", origin="own")
def two_steps_for_one(case: Case) -> Case:
    """The optimizer steps twice on each gradient."""

    def doubled(optimizer, usual):
        usual()
        usual()

    return _stepping(case, doubled)


def _scheduling(case, change):
    class Trainer(case.trainer):
        def create_scheduler(self, *args, **named):
            schedule = super().create_scheduler(*args, **named)
            change(schedule)
            return schedule

    return replace(case, trainer=Trainer)


@faulty("optimizer step", origin="own")
def schedule_runs_twice_as_fast(case: Case) -> Case:
    """The schedule is stepped twice for each update."""

    def doubled(schedule):
        usual = schedule.step

        def step(*args):
            usual(*args)
            usual(*args)

        schedule.step = step

    return _scheduling(case, doubled)


@faulty("optimizer step", origin="own")
def schedule_never_steps(case: Case) -> Case:
    """A linear schedule was asked for, and the rate stays what it was at first."""

    def still(schedule):
        schedule.step = lambda *args: None

    return _scheduling(case, still)


@faulty(
    "optimizer step",
    origin="own",
    config={"warmup_steps": 4, "lr_scheduler_type": "constant_with_warmup"},
)
def warm_up_lost(case: Case) -> Case:
    """Four steps of warm-up were asked for, and the first step has the whole rate."""

    class Trainer(case.trainer):
        def create_scheduler(self, num_training_steps, optimizer=None):
            optimizer = optimizer or self.optimizer
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
            return self.lr_scheduler

    return replace(case, trainer=Trainer)
