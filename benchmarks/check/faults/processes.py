"""Faults of several processes that train together: a collective left out or misread, or a branch that depends on the rank."""

from __future__ import annotations

import torch
from accelerate.utils import broadcast, gather
from torch.utils.data import DataLoader
from transformers import TrainerCallback, set_seed

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faults, faulty
from benchmarks.check.faults.ways import after, batched, generated, method


def _rank(trainer):
    return trainer.accelerator.process_index


def _at(event):
    """The way that calls `act` with the trainer at this event of a callback."""

    def by(case, act):
        def add(trainer):
            called = {event: lambda self, *args, **named: act(trainer)}
            trainer.add_callback(type("Callback", (TrainerCallback,), called)())

        return case.then(add)

    return by


_computed = method("compute_loss")


# what they hold and draw


@faulty(method("get_train_dataloader"))
def rows_not_sharded(trainer, usual):
    return DataLoader(
        trainer.train_dataset,
        batch_size=trainer._train_batch_size * trainer.args.steps_per_generation,
        collate_fn=trainer.data_collator,
        sampler=trainer._get_train_sampler(),
    )


@faulty(_at("on_step_begin"))
def one_seed_on_every_rank(trainer):
    set_seed(42)


@faulty(_at("on_pre_optimizer_step"))
def rate_changed_on_main_alone(trainer):
    if trainer.accelerator.is_main_process:
        for group in trainer.optimizer.param_groups:
            group["lr"] /= 10


@faulty(_at("on_train_begin"))
def weights_loaded_on_main_alone(trainer):
    if trainer.accelerator.is_main_process:
        with torch.no_grad():
            for weight in trainer.model.parameters():
                weight.mul_(1.01)


@faulty(_at("on_step_end"))
def state_dropped_on_a_rank(trainer):
    if _rank(trainer) == 1:
        trainer.optimizer.optimizer.state.clear()


@faulty()
def clipped_by_the_main_process_alone(case: Case) -> Case:
    def plain(trainer):
        clip = trainer.accelerator.clip_grad_norm_
        if not trainer.accelerator.is_main_process:
            trainer.accelerator.clip_grad_norm_ = lambda weights, limit, *a: clip(weights, 1e9)

    return case.told(max_grad_norm=0.01).then(plain)


@faulty(_computed)
def gradients_not_reduced(trainer, usual, model, *args, **named):
    return usual(trainer.accelerator.unwrap_model(model), *args, **named)


# rollouts and rewards


@faulty(Case.then)
def another_temperature_on_a_rank(trainer):
    if _rank(trainer) == 1:
        trainer.generation_config.temperature = 0.5


@faulty(method("_calculate_rewards"))
def own_rewards_first(trainer, usual, inputs, *args):
    return usual(inputs, *args).roll(-_rank(trainer) * len(inputs), 0)


@faulty(generated)
def nothing_counted_on_a_rank(trainer, out):
    if _rank(trainer) == 1:
        out["completion_mask"][:, 1:] = 0
    return out


# advantages


@faulty()
def groups_cut_by_rank(case: Case) -> Case:
    def keep(trainer, usual, inputs, *args):
        every = usual(inputs, *args)
        start = _rank(trainer) * len(inputs)
        trainer.kept = every[start : start + len(inputs)]
        return every

    def local(trainer, right, batch):
        rewards = (trainer.kept * trainer.reward_weights).nansum(1)
        return (rewards - rewards.mean()) / (rewards.std() + 1e-4)

    return batched("advantages")(method("_calculate_rewards")(case, keep), local)


faults(
    batched("advantages"),
    slice_of_the_first_rank=lambda trainer, advantages, batch: broadcast(advantages.contiguous()),
    spread_of_the_own_rank=lambda trainer, advantages, batch: (
        advantages / (advantages.std() + 1e-4)
    ),
)


@faulty(batched("ref_per_token_logps"))
def reference_of_a_rank_is_the_policy(trainer, logps, batch):
    return logps - 0.1 if _rank(trainer) == 1 else logps


# loss and gradient


faults(
    batched("num_items_in_batch"),
    tokens_counted_by_each_rank=lambda trainer, count, batch: (
        batch["completion_mask"].sum() * trainer.accelerator.num_processes
    ),
    tokens_not_gathered=lambda trainer, count, batch: batch["completion_mask"].sum(),
)

faults(
    after("compute_loss"),
    loss_times_the_ranks=lambda trainer, loss: loss * trainer.accelerator.num_processes,
    loss_over_the_ranks=lambda trainer, loss: loss / trainer.accelerator.num_processes,
    a_rank_without_a_loss=lambda trainer, loss: loss * (0.0 if _rank(trainer) else 1.0),
)


@faulty(_computed)
def batch_of_the_first_rank(trainer, usual, model, inputs, **named):
    advantages = broadcast(inputs["advantages"].contiguous())
    return usual(model, {**inputs, "advantages": advantages}, **named)


@faulty(_computed)
def gradients_summed(trainer, usual, model, *args, **named):
    def summed(_, bucket):
        work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    if not hasattr(trainer, "hooked"):
        trainer.hooked = True
        model.register_comm_hook(None, summed)
    return usual(model, *args, **named)


@faulty(Case.then)
def gradients_averaged_again(trainer):
    backward = trainer.accelerator.backward

    def averaged(loss, **named):
        backward(loss, **named)
        if trainer.accelerator.sync_gradients:
            for weight in trainer.model.parameters():
                if weight.grad is not None:
                    weight.grad = torch.stack([*gather(weight.grad[None])]).mean(0) / 2

    trainer.accelerator.backward = averaged
