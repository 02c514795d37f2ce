"""Faults of the optimizer's step and of its schedule."""

from __future__ import annotations

from types import MethodType

import torch

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faults, faulty
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


faults(
    _grouped,
    empty_optimizer=lambda trainer, group: {"params": []},
    half_of_the_weights_left_out=lambda trainer, group: {"params": group["params"][::2]},
    step_uphill=lambda trainer, group: {"maximize": True},
    rate_divided_by_a_hundred=lambda trainer, group: {"lr": group["lr"] / 100},
    weights_of_norms_decayed=lambda trainer, group: {"weight_decay": trainer.args.weight_decay},
    weight_decay_lost=lambda trainer, group: {"weight_decay": 0.0},
    decay_rates_exchanged=lambda trainer, group: {"betas": group["betas"][::-1]},
)


@faulty(_stepping)
def weights_stored_in_bfloat16(optimizer, usual):
    usual()
    with torch.no_grad():
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight.copy_(weight.bfloat16())


@faulty(method("create_optimizer"))
def plain_descent_for_adam(trainer, usual, *args):
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=trainer.args.learning_rate)
    return trainer.optimizer


@faulty()
def clipped_steps_skipped(case: Case) -> Case:
    counted = []

    def skipping(optimizer, usual):
        counted.append(1)
        if len(counted) % 2:
            usual()

    return _stepping(case, skipping)


@faulty(_stepping)
def moments_forgotten(optimizer, usual):
    optimizer.state.clear()
    usual()


@faulty(_stepping)
def two_steps_for_one(optimizer, usual):
    usual()
    usual()


@faulty(_scheduling)
def schedule_runs_twice_as_fast(trainer, schedule):
    usual = schedule.step

    def step(*args):
        usual(*args)
        usual(*args)

    schedule.step = step


@faulty(_scheduling)
def schedule_never_steps(trainer, schedule):
    schedule.step = lambda *args: None


@faulty(method("create_scheduler"))
def warm_up_lost(trainer, usual, num_training_steps, optimizer=None):
    optimizer = optimizer or trainer.optimizer
    trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    return trainer.lr_scheduler
