"""Faults of the optimizer's step and of its schedule."""

from __future__ import annotations

from types import MethodType

import torch

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty
from benchmarks.check.faults.ways import method


def _made(name):
    """The way that makes `change` to what a trainer's method makes: of the trainer and it."""

    def by(case, change):
        def changed(trainer, usual, *args, **named):
            made = usual(*args, **named)
            change(trainer, made)
            return made

        return method(name)(case, changed)

    return by


_optimizing, _scheduling = _made("create_optimizer"), _made("create_scheduler")


def _grouped(case, change):
    """The case in which each of the optimizer's groups is updated with `change` of the trainer and the group."""

    def changed(trainer, optimizer):
        for group in optimizer.param_groups:
            group.update(change(trainer, group))

    return _optimizing(case, changed)


def _stepping(case, step):
    """The case in which `step` is called instead, with the optimizer and its own step."""

    def instead(trainer, optimizer):
        usual = optimizer.step
        optimizer.step = MethodType(lambda own, closure=None: step(own, usual), optimizer)

    return _optimizing(case, instead)


@faulty(_grouped)
def empty_optimizer(trainer, group):
    """The optimizer steps and has nothing to step on."""
    return {"params": []}


@faulty(_stepping)
def weights_stored_in_bfloat16(optimizer, usual):
    """The optimizer stores weights in bfloat16, which rounds small updates away."""
    usual()
    with torch.no_grad():
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight.copy_(weight.bfloat16())


@faulty(_grouped)
def half_of_the_weights_left_out(trainer, group):
    """Half of the weights are in no group of the optimizer."""
    return {"params": group["params"][::2]}


@faulty(_grouped)
def step_uphill(trainer, group):
    """The optimizer maximises the loss."""
    return {"maximize": True}


@faulty(_grouped)
def rate_divided_by_a_hundred(trainer, group):
    """The optimizer's learning rate is a hundredth of what was asked for."""
    return {"lr": group["lr"] / 100}


@faulty(_grouped)
def weights_of_norms_decayed(trainer, group):
    """Weight decay holds for norms too, which were left out of it."""
    return {"weight_decay": trainer.args.weight_decay}


@faulty(_grouped)
def weight_decay_lost(trainer, group):
    """Weight decay was asked for, and there is none."""
    return {"weight_decay": 0.0}


@faulty(_grouped)
def decay_rates_exchanged(trainer, group):
    """The two decay rates of Adam's moments are exchanged."""
    return {"betas": group["betas"][::-1]}


@faulty(method("create_optimizer"))
def plain_descent_for_adam(trainer, usual, *args):
    """AdamW was asked for, and the script's subclass makes plain gradient descent."""
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=trainer.args.learning_rate)
    return trainer.optimizer


@faulty()
def clipped_steps_skipped(case: Case) -> Case:
    """Every second step is skipped, as a loss scaler does that never settles."""
    counted = []

    def skipping(optimizer, usual):
        counted.append(1)
        if len(counted) % 2:
            usual()

    return _stepping(case, skipping)


@faulty(_stepping)
def moments_forgotten(optimizer, usual):
    """Adam's moments are cleared before each step."""
    optimizer.state.clear()
    usual()


@faulty(_stepping)
def two_steps_for_one(optimizer, usual):
    """The optimizer steps twice on each gradient."""
    usual()
    usual()


@faulty(_scheduling)
def schedule_runs_twice_as_fast(trainer, schedule):
    """The schedule is stepped twice for each update."""
    usual = schedule.step

    def step(*args):
        usual(*args)
        usual(*args)

    schedule.step = step


@faulty(_scheduling)
def schedule_never_steps(trainer, schedule):
    """A linear schedule was asked for, and the rate stays what it was at first."""
    schedule.step = lambda *args: None


@faulty(method("create_scheduler"))
def warm_up_lost(trainer, usual, num_training_steps, optimizer=None):
    """Four steps of warm-up were asked for, and the first step has the whole rate."""
    optimizer = optimizer or trainer.optimizer
    trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    return trainer.lr_scheduler
