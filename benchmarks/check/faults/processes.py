"""Faults of several processes that train together: a collective left out or misread, or a branch that depends on the rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import broadcast, gather
from transformers import TrainerCallback, set_seed

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import Fault
from benchmarks.check.faults.fault import faulty as planted

_SPREAD = "groups-across-processes"


def faulty(*segments: str, **known: Any) -> Callable[[Callable[[Case], Case]], Fault]:
    """Make a fault that shows in two processes and not in one."""
    return planted(*segments, processes=2, **known)


def _rank(trainer):
    return trainer.accelerator.process_index


def _called(case, event, act):
    class Callback(TrainerCallback):
        pass

    def add(trainer):
        setattr(Callback, event, lambda self, *args, **named: act(trainer))
        trainer.add_callback(Callback())

    return case.then(add)


def _made(case, change):
    """Return the case whose batches are changed by a function of the trainer and the batch."""

    class Trainer(case.trainer):
        def _generate_and_score_completions(self, inputs):
            return change(self, super()._generate_and_score_completions(inputs))

    return replace(case, trainer=Trainer)


def _lost(case, change):
    """Return the case whose loss is changed by a function of the trainer and the loss."""

    class Trainer(case.trainer):
        def compute_loss(self, *args, **named):
            return change(self, super().compute_loss(*args, **named))

    return replace(case, trainer=Trainer)


# what they hold and draw


@faulty("processes", source="verl 1206")
def rows_not_sharded(case: Case) -> Case:
    """The data loader is not prepared, so that every rank trains on the same rows."""

    class Trainer(case.trainer):
        def get_train_dataloader(self):
            from torch.utils.data import DataLoader

            return DataLoader(
                self.train_dataset,
                batch_size=self._train_batch_size * self.args.steps_per_generation,
                collate_fn=self.data_collator,
                sampler=self._get_train_sampler(),
            )

    return replace(case, trainer=Trainer)


@faulty("processes", setting=_SPREAD, source="OpenRLHF 1063")
def one_seed_on_every_rank(case: Case) -> Case:
    """Every rank is seeded alike before it samples, and a group has each rollout twice."""
    return _called(case, "on_step_begin", lambda trainer: set_seed(42))


@faulty("processes")
def rate_changed_on_main_alone(case: Case) -> Case:
    """The main process alone lowers the learning rate."""

    def lower(trainer):
        if trainer.accelerator.is_main_process:
            for group in trainer.optimizer.param_groups:
                group["lr"] /= 10

    return _called(case, "on_pre_optimizer_step", lower)


@faulty("processes")
def weights_loaded_on_main_alone(case: Case) -> Case:
    """The main process alone loads other weights when training begins."""

    def load(trainer):
        if trainer.accelerator.is_main_process:
            with torch.no_grad():
                for weight in trainer.model.parameters():
                    weight.mul_(1.01)

    return _called(case, "on_train_begin", load)


@faulty("processes")
def state_dropped_on_a_rank(case: Case) -> Case:
    """The second rank drops its optimizer's state after each step to save memory."""

    def drop(trainer):
        if _rank(trainer) == 1:
            trainer.optimizer.optimizer.state.clear()

    return _called(case, "on_step_end", drop)


@faulty("processes", source="ms-swift 6815")
def clipped_by_the_main_process_alone(case: Case) -> Case:
    """Only the main process clips its gradients."""

    def plain(trainer):
        clip = trainer.accelerator.clip_grad_norm_
        if not trainer.accelerator.is_main_process:
            trainer.accelerator.clip_grad_norm_ = lambda parameters, limit, *a: clip(
                parameters, 1e9
            )

    return case.told(max_grad_norm=0.01).then(plain)


@faulty("processes", source="accelerate 3877")
def gradients_not_reduced(case: Case) -> Case:
    """The loss calls the wrapped model itself, so that gradients stay each rank's own."""

    class Trainer(case.trainer):
        def compute_loss(self, model, *args, **named):
            return super().compute_loss(self.accelerator.unwrap_model(model), *args, **named)

    return replace(case, trainer=Trainer)


# rollouts and rewards


@faulty("sampling settings")
def another_temperature_on_a_rank(case: Case) -> Case:
    """The second rank samples at another temperature."""

    def colder(trainer):
        if _rank(trainer) == 1:
            trainer.generation_config.temperature = 0.5

    return case.then(colder)


@faulty("rewards", source="TRL 2960")
def own_rewards_first(case: Case) -> Case:
    """Each rank puts its own rewards first and takes its slice as if they stood in the order of ranks."""

    class Trainer(case.trainer):
        def _calculate_rewards(self, inputs, *args):
            every = super()._calculate_rewards(inputs, *args)
            return every.roll(-_rank(self) * len(inputs), 0)

    return replace(case, trainer=Trainer)


@faulty("loss mask")
def nothing_counted_on_a_rank(case: Case) -> Case:
    """The second rank's completions are masked out."""

    def mask(trainer, out):
        if _rank(trainer) == 1:
            out["completion_mask"][:, 1:] = 0
        return out

    return _made(case, mask)


# advantages


@faulty("advantages", setting=_SPREAD, source="TRL 5030")
def groups_cut_by_rank(case: Case) -> Case:
    """Rewards are not gathered, so that each rank's part of a group is a group of its own."""

    def local(trainer, out):
        rewards = trainer.kept
        rewards = (rewards * trainer.reward_weights).nansum(1)
        out["advantages"] = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        return out

    class Keeps(case.trainer):
        def _calculate_rewards(self, inputs, *args):
            every = super()._calculate_rewards(inputs, *args)
            start = _rank(self) * len(inputs)
            self.kept = every[start : start + len(inputs)]
            return every

    return _made(replace(case, trainer=Keeps), local)


@faulty("advantages")
def slice_of_the_first_rank(case: Case) -> Case:
    """Every rank takes the first rank's advantages."""

    def first(trainer, out):
        out["advantages"] = broadcast(out["advantages"].contiguous())
        return out

    return _made(case, first)


@faulty("advantages", setting="scale-batch")
def spread_of_the_own_rank(case: Case) -> Case:
    """Advantages are scaled to a spread of 1 within each rank."""

    def scaled(trainer, out):
        out["advantages"] = out["advantages"] / (out["advantages"].std() + 1e-4)
        return out

    return _made(case, scaled)


@faulty("reference log-probabilities", setting="kl")
def reference_of_a_rank_is_the_policy(case: Case) -> Case:
    """The second rank has no reference model and takes noisy log-probabilities instead."""

    def other(trainer, out):
        if _rank(trainer) == 1:
            out["ref_per_token_logps"] = out["ref_per_token_logps"] - 0.1
        return out

    return _made(case, other)


# loss and gradient


@faulty("loss", setting="loss-dapo", source="TRL 3021", causes=("loss-aggregation",))
def tokens_counted_by_each_rank(case: Case) -> Case:
    """The loss is divided by the rank's own count of tokens, times the number of ranks."""

    def own(trainer, out):
        out["num_items_in_batch"] = out["completion_mask"].sum() * trainer.accelerator.num_processes
        return out

    return _made(case, own)


@faulty("loss", setting="loss-dapo", source="ms-swift 10165", causes=("loss-aggregation",))
def tokens_not_gathered(case: Case) -> Case:
    """The count of tokens that the loss is divided by is not gathered."""

    def own(trainer, out):
        out["num_items_in_batch"] = out["completion_mask"].sum()
        return out

    return _made(case, own)


@faulty("loss", source="tmax 9", causes=("loss-aggregation",))
def loss_times_the_ranks(case: Case) -> Case:
    """The loss is multiplied by the number of ranks, as for a backend that takes sums."""
    return _lost(case, lambda trainer, loss: loss * trainer.accelerator.num_processes)


@faulty("loss", source="DeepSpeed 5898", causes=("loss-aggregation",))
def loss_over_the_ranks(case: Case) -> Case:
    """The loss is divided by the number of ranks, over which its gradient's mean is taken again."""
    return _lost(case, lambda trainer, loss: loss / trainer.accelerator.num_processes)


@faulty("loss")
def a_rank_without_a_loss(case: Case) -> Case:
    """The second rank's loss is multiplied by 0, so that it joins the exchange and teaches nothing."""
    return _lost(case, lambda trainer, loss: loss * (0.0 if _rank(trainer) else 1.0))


@faulty("micro-batches")
def batch_of_the_first_rank(case: Case) -> Case:
    """Every rank trains on the first rank's advantages: the batch is broadcast before the loss."""

    class Trainer(case.trainer):
        def compute_loss(self, model, inputs, **named):
            inputs = {**inputs, "advantages": broadcast(inputs["advantages"].contiguous())}
            return super().compute_loss(model, inputs, **named)

    return replace(case, trainer=Trainer)


@faulty("gradient", causes=("loss-aggregation",))
def gradients_summed(case: Case) -> Case:
    """Gradients are summed over ranks where the loss is meant for their mean."""

    class Trainer(case.trainer):
        hooked = False

        def compute_loss(self, model, *args, **named):
            if not self.hooked:
                self.hooked = True

                def summed(_, bucket):
                    work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
                    return work.get_future().then(lambda done: done.value()[0])

                model.register_comm_hook(None, summed)
            return super().compute_loss(model, *args, **named)

    return replace(case, trainer=Trainer)


@faulty("gradient", causes=("loss-aggregation",))
def gradients_averaged_again(case: Case) -> Case:
    """Gradients are divided by the number of ranks once more before the step."""

    def again(trainer):
        backward = trainer.accelerator.backward

        def averaged(loss, **named):
            backward(loss, **named)
            if trainer.accelerator.sync_gradients:
                for weight in trainer.model.parameters():
                    if weight.grad is not None:
                        weight.grad = torch.stack([*gather(weight.grad[None])]).mean(0) / 2

        trainer.accelerator.backward = averaged

    return case.then(again)
