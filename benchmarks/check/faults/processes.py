"""Faults of several processes that train together: a collective left out or misread, or a branch that depends on the rank."""

from __future__ import annotations

import torch
from accelerate.utils import broadcast, gather
from torch.utils.data import DataLoader
from transformers import TrainerCallback, set_seed

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty
from benchmarks.check.faults.ways import generated, method


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


def _lost(case, change):
    """The case whose loss is changed by a function of the trainer and the loss."""

    def lost(trainer, usual, *args, **named):
        return change(trainer, usual(*args, **named))

    return _computed(case, lost)


def _batched(name):
    """The way that makes `change` to that tensor of the batch: of the trainer, it and the batch."""

    def by(case, change):
        return generated(case, lambda trainer, b: {**b, name: change(trainer, b[name], b)})

    return by


# what they hold and draw


@faulty(method("get_train_dataloader"))
def rows_not_sharded(trainer, usual):
    """The data loader is not prepared, so that every rank trains on the same rows."""
    return DataLoader(
        trainer.train_dataset,
        batch_size=trainer._train_batch_size * trainer.args.steps_per_generation,
        collate_fn=trainer.data_collator,
        sampler=trainer._get_train_sampler(),
    )


@faulty(_at("on_step_begin"))
def one_seed_on_every_rank(trainer):
    """Every rank is seeded alike before it samples, and a group has each rollout twice."""
    set_seed(42)


@faulty(_at("on_pre_optimizer_step"))
def rate_changed_on_main_alone(trainer):
    """The main process alone lowers the learning rate."""
    if trainer.accelerator.is_main_process:
        for group in trainer.optimizer.param_groups:
            group["lr"] /= 10


@faulty(_at("on_train_begin"))
def weights_loaded_on_main_alone(trainer):
    """The main process alone loads other weights when training begins."""
    if trainer.accelerator.is_main_process:
        with torch.no_grad():
            for weight in trainer.model.parameters():
                weight.mul_(1.01)


@faulty(_at("on_step_end"))
def state_dropped_on_a_rank(trainer):
    """The second rank drops its optimizer's state after each step to save memory."""
    if _rank(trainer) == 1:
        trainer.optimizer.optimizer.state.clear()


@faulty()
def clipped_by_the_main_process_alone(case: Case) -> Case:
    """Only the main process clips its gradients."""

    def plain(trainer):
        clip = trainer.accelerator.clip_grad_norm_
        if not trainer.accelerator.is_main_process:
            trainer.accelerator.clip_grad_norm_ = lambda weights, limit, *a: clip(weights, 1e9)

    return case.told(max_grad_norm=0.01).then(plain)


@faulty(_computed)
def gradients_not_reduced(trainer, usual, model, *args, **named):
    """The loss calls the wrapped model itself, so that gradients stay each rank's own."""
    return usual(trainer.accelerator.unwrap_model(model), *args, **named)


# rollouts and rewards


@faulty(Case.then)
def another_temperature_on_a_rank(trainer):
    """The second rank samples at another temperature."""
    if _rank(trainer) == 1:
        trainer.generation_config.temperature = 0.5


@faulty(method("_calculate_rewards"))
def own_rewards_first(trainer, usual, inputs, *args):
    """Each rank puts its own rewards first and takes its slice as if they stood in the order of ranks."""
    return usual(inputs, *args).roll(-_rank(trainer) * len(inputs), 0)


@faulty(generated)
def nothing_counted_on_a_rank(trainer, out):
    """The second rank's completions are masked out."""
    if _rank(trainer) == 1:
        out["completion_mask"][:, 1:] = 0
    return out


# advantages


@faulty()
def groups_cut_by_rank(case: Case) -> Case:
    """Rewards are not gathered, so that each rank's part of a group is a group of its own."""

    def keep(trainer, usual, inputs, *args):
        every = usual(inputs, *args)
        start = _rank(trainer) * len(inputs)
        trainer.kept = every[start : start + len(inputs)]
        return every

    def local(trainer, right, batch):
        rewards = (trainer.kept * trainer.reward_weights).nansum(1)
        return (rewards - rewards.mean()) / (rewards.std() + 1e-4)

    return _batched("advantages")(method("_calculate_rewards")(case, keep), local)


@faulty(_batched("advantages"))
def slice_of_the_first_rank(trainer, advantages, batch):
    """Every rank takes the first rank's advantages."""
    return broadcast(advantages.contiguous())


@faulty(_batched("advantages"))
def spread_of_the_own_rank(trainer, advantages, batch):
    """Advantages are scaled to a spread of 1 within each rank."""
    return advantages / (advantages.std() + 1e-4)


@faulty(_batched("ref_per_token_logps"))
def reference_of_a_rank_is_the_policy(trainer, logps, batch):
    """The second rank has no reference model and takes noisy log-probabilities instead."""
    return logps - 0.1 if _rank(trainer) == 1 else logps


# loss and gradient


@faulty(_batched("num_items_in_batch"))
def tokens_counted_by_each_rank(trainer, count, batch):
    """The loss is divided by the rank's own count of tokens, times the number of ranks."""
    return batch["completion_mask"].sum() * trainer.accelerator.num_processes


@faulty(_batched("num_items_in_batch"))
def tokens_not_gathered(trainer, count, batch):
    """The count of tokens that the loss is divided by is not gathered."""
    return batch["completion_mask"].sum()


@faulty(_lost)
def loss_times_the_ranks(trainer, loss):
    """The loss is multiplied by the number of ranks, as for a backend that takes sums."""
    return loss * trainer.accelerator.num_processes


@faulty(_lost)
def loss_over_the_ranks(trainer, loss):
    """The loss is divided by the number of ranks, over which its gradient's mean is taken again."""
    return loss / trainer.accelerator.num_processes


@faulty(_lost)
def a_rank_without_a_loss(trainer, loss):
    """The second rank's loss is multiplied by 0, so that it joins the exchange and teaches nothing."""
    return loss * (0.0 if _rank(trainer) else 1.0)


@faulty(_computed)
def batch_of_the_first_rank(trainer, usual, model, inputs, **named):
    """Every rank trains on the first rank's advantages: the batch is broadcast before the loss."""
    advantages = broadcast(inputs["advantages"].contiguous())
    return usual(model, {**inputs, "advantages": advantages}, **named)


@faulty(_computed)
def gradients_summed(trainer, usual, model, *args, **named):
    """Gradients are summed over ranks where the loss is meant for their mean."""

    def summed(_, bucket):
        work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    if not hasattr(trainer, "hooked"):
        trainer.hooked = True
        model.register_comm_hook(None, summed)
    return usual(model, *args, **named)


@faulty(Case.then)
def gradients_averaged_again(trainer):
    """Gradients are divided by the number of ranks once more before the step."""
    backward = trainer.accelerator.backward

    def averaged(loss, **named):
        backward(loss, **named)
        if trainer.accelerator.sync_gradients:
            for weight in trainer.model.parameters():
                if weight.grad is not None:
                    weight.grad = torch.stack([*gather(weight.grad[None])]).mean(0) / 2

    trainer.accelerator.backward = averaged
