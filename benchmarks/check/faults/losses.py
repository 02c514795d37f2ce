"""Faults of the loss."""

from __future__ import annotations

import torch

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faults, faulty
from benchmarks.check.faults.ways import after, losing, method


def _told(case, values):
    """The case whose trainer has these values, whatever its arguments say."""
    return case.then(lambda trainer: vars(trainer).update(values))


_loss = after("_compute_loss", 1)


def _own_loss(case, by_token):
    """The case whose loss is the user's own: `by_token` of ratio, advantages and log-probabilities, over all tokens."""

    def computed(trainer, usual, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        keep, mask = inputs["completion_ids"].shape[1], inputs["completion_mask"]
        logps = trainer._get_per_token_logps_and_entropies(model, ids, seen, keep)[0]
        old = inputs.get("old_per_token_logps")
        gap = logps - (logps.detach() if old is None else old)
        values = by_token(trainer, gap, inputs["advantages"][:, None], logps, inputs)
        return (values * mask).sum() / inputs["num_items_in_batch"]

    return method("_compute_loss")(case, computed)


def _both(trainer, ratio, advantages):
    """Return the plain objective and the clipped one."""
    low, high = 1 - trainer.epsilon_low, 1 + trainer.epsilon_high
    return ratio * advantages, ratio.clamp(low, high) * advantages


def _clipped(trainer, ratio, advantages):
    return -torch.minimum(*_both(trainer, ratio, advantages))


def _reference_gap(logps, inputs):
    return inputs["ref_per_token_logps"] - logps


def _k3(left):
    return left.exp() - left - 1


faults(
    _told,
    kl_twice_as_strong={"beta": 0.6},
    another_loss_type={"loss_type": "grpo"},
    clipped_at_a_hundredth={"epsilon_low": 0.01, "epsilon_high": 0.01},
    upper_bound_ignored={"epsilon_high": 0.05},
    ratio_by_token_though_by_sequence={"importance_sampling_level": "token"},
)


def _penalised(case, penalty):
    """The case of an own loss with `penalty` of log-probabilities and the batch for the KL term."""

    def by_token(trainer, gap, advantages, logps, inputs):
        return _clipped(trainer, gap.exp(), advantages) + trainer.beta * penalty(logps, inputs)

    return _own_loss(case, by_token)


faults(
    _penalised,
    kl_subtracted=lambda logps, inputs: -_k3(_reference_gap(logps, inputs)),
    k1_as_a_loss=lambda logps, inputs: -_reference_gap(logps, inputs),
    kl_without_gradient=lambda logps, inputs: _k3(_reference_gap(logps.detach(), inputs)),
    kl_reversed=lambda logps, inputs: _k3(-_reference_gap(logps, inputs)),
)

faults(
    _loss,
    loss_negated_twice=lambda trainer, loss, inputs: -loss,
    not_divided_by_accumulation=lambda trainer, loss, inputs: (
        loss * trainer.args.gradient_accumulation_steps
    ),
    sum_for_the_mean=lambda trainer, loss, inputs: loss * inputs["num_items_in_batch"],
    short_replies_skipped=lambda trainer, loss, inputs: (
        loss * 0 if inputs["completion_mask"].all(1).any() else loss
    ),
)


@faulty(_loss)
def padding_in_the_denominator(trainer, loss, inputs):
    mask = inputs["completion_mask"]
    return loss * mask.sum() / mask.numel()


faults(
    _own_loss,
    never_clipped=lambda trainer, gap, advantages, logps, inputs: -gap.exp() * advantages,
    ratio_left_out=lambda trainer, gap, advantages, logps, inputs: -logps * advantages,
    maximum_for_the_minimum=lambda trainer, gap, advantages, logps, inputs: (
        -torch.maximum(*_both(trainer, gap.exp(), advantages))
    ),
    ratio_of_sequences_by_sum=lambda trainer, gap, advantages, logps, inputs: _clipped(
        trainer, (gap * inputs["completion_mask"]).sum(1, keepdim=True).exp(), advantages
    ),
    first_token_weighs_most=lambda trainer, gap, advantages, logps, inputs: (
        _clipped(trainer, gap.exp(), advantages) * torch.linspace(1, 0.1, logps.shape[1])
    ),
    entropy_bonus_unasked=lambda trainer, gap, advantages, logps, inputs: (
        _clipped(trainer, gap.exp(), advantages) + 0.1 * logps
    ),
)


@faulty(Case.then)
def delta_ignored(trainer):
    trainer.args.delta = None


faults(
    losing,
    advantages_made_positive=lambda trainer, inputs: (
        {**inputs, "advantages": inputs["advantages"].abs()}
    ),
    loss_without_the_tool_mask=lambda trainer, inputs: (
        {name: value for name, value in inputs.items() if name != "tool_mask"}
    ),
)


@faulty(method("get_high_entropy_mask"))
def high_entropy_mask_turned_round(trainer, usual, entropies, mask, threshold):
    return ~usual(entropies, mask, threshold) & mask.bool()
