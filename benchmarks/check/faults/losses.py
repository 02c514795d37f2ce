"""Faults of the loss."""

from __future__ import annotations

import torch

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty
from benchmarks.check.faults.ways import losing, method


def _told(case, **values):
    """The case whose trainer has these values, whatever its arguments say."""
    return case.then(lambda trainer: vars(trainer).update(values))


def _loss(case, change):
    """The case whose loss is `change` of the right one."""

    def changed(trainer, usual, model, inputs):
        return change(trainer, usual(model, inputs), inputs)

    return method("_compute_loss")(case, changed)


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


@faulty(_own_loss)
def kl_subtracted(trainer, gap, advantages, logps, inputs):
    """The KL term has the wrong sign."""
    left = _reference_gap(logps, inputs)
    return _clipped(trainer, gap.exp(), advantages) - trainer.beta * (left.exp() - left - 1)


@faulty(_own_loss)
def k1_as_a_loss(trainer, gap, advantages, logps, inputs):
    """The KL term is the difference of log-probabilities, whose gradient is 0 on average."""
    left = _reference_gap(logps, inputs)
    return _clipped(trainer, gap.exp(), advantages) - trainer.beta * left


@faulty()
def kl_twice_as_strong(case: Case) -> Case:
    """The trainer's beta is twice what its arguments say."""
    return _told(case, beta=0.6)


@faulty(_own_loss)
def kl_without_gradient(trainer, gap, advantages, logps, inputs):
    """The KL term is added to the loss as a number, without a gradient."""
    left = _reference_gap(logps.detach(), inputs)
    return _clipped(trainer, gap.exp(), advantages) + trainer.beta * (left.exp() - left - 1)


@faulty(_own_loss)
def kl_reversed(trainer, gap, advantages, logps, inputs):
    """The KL term has policy and reference exchanged."""
    left = -_reference_gap(logps, inputs)
    return _clipped(trainer, gap.exp(), advantages) + trainer.beta * (left.exp() - left - 1)


@faulty(_loss)
def loss_negated_twice(trainer, loss, inputs):
    """The objective is negated once more, so that what was rewarded becomes less likely."""
    return -loss


@faulty(_loss)
def not_divided_by_accumulation(trainer, loss, inputs):
    """The loss of each micro-batch is not divided by their number."""
    return loss * trainer.args.gradient_accumulation_steps


@faulty(_loss)
def sum_for_the_mean(trainer, loss, inputs):
    """The loss is a sum over tokens."""
    return loss * inputs["num_items_in_batch"]


@faulty(_loss)
def padding_in_the_denominator(trainer, loss, inputs):
    """The mean is over all places, padding included."""
    mask = inputs["completion_mask"]
    return loss * mask.sum() / mask.numel()


@faulty()
def another_loss_type(case: Case) -> Case:
    """Dr. GRPO was asked for, and GRPO's mean over each reply is computed."""
    return _told(case, loss_type="grpo")


@faulty()
def clipped_at_a_hundredth(case: Case) -> Case:
    """The ratio is clipped at 0.01 around 1, where 0.2 was asked for."""
    return _told(case, epsilon_low=0.01, epsilon_high=0.01)


@faulty()
def upper_bound_ignored(case: Case) -> Case:
    """The upper bound of the ratio was to be 0.6, and is the lower one's 0.05."""
    return _told(case, epsilon_high=0.05)


@faulty(_own_loss)
def never_clipped(trainer, gap, advantages, logps, inputs):
    """The ratio is not clipped."""
    return -gap.exp() * advantages


@faulty(_own_loss)
def ratio_left_out(trainer, gap, advantages, logps, inputs):
    """Second updates are made without the ratio, as if they were on-policy."""
    return -logps * advantages


@faulty(_own_loss)
def maximum_for_the_minimum(trainer, gap, advantages, logps, inputs):
    """Of the clipped and the plain objective the larger is taken."""
    return -torch.maximum(*_both(trainer, gap.exp(), advantages))


@faulty(_own_loss)
def ratio_of_sequences_by_sum(trainer, gap, advantages, logps, inputs):
    """The ratio of a sequence is the product over its tokens, where the geometric mean was asked for."""
    total = (gap * inputs["completion_mask"]).sum(1, keepdim=True)
    return _clipped(trainer, total.exp(), advantages)


@faulty()
def ratio_by_token_though_by_sequence(case: Case) -> Case:
    """A ratio for each sequence was asked for, and each token has its own."""
    return _told(case, importance_sampling_level="token")


@faulty(Case.then)
def delta_ignored(trainer):
    """The ratio was to be at most 1.05 on either side, and is not held."""
    trainer.args.delta = None


@faulty(_own_loss)
def entropy_bonus_unasked(trainer, gap, advantages, logps, inputs):
    """A bonus for surprising tokens is added, which nobody asked for."""
    return _clipped(trainer, gap.exp(), advantages) + 0.1 * logps


@faulty(_own_loss)
def first_token_weighs_most(trainer, gap, advantages, logps, inputs):
    """Tokens are weighted by their place, the first ten times the last."""
    places = torch.linspace(1, 0.1, logps.shape[1])
    return _clipped(trainer, gap.exp(), advantages) * places


@faulty(_loss)
def short_replies_skipped(trainer, loss, inputs):
    """The loss of a micro-batch is 0 where its longest reply is at the limit."""
    return loss * 0 if inputs["completion_mask"].all(1).any() else loss


@faulty(losing)
def advantages_made_positive(trainer, inputs):
    """The loss takes the size of advantages without their sign."""
    return {**inputs, "advantages": inputs["advantages"].abs()}


@faulty(method("get_high_entropy_mask"))
def high_entropy_mask_turned_round(trainer, usual, entropies, mask, threshold):
    """The tokens of high entropy were to be trained, and those of low entropy are."""
    return ~usual(entropies, mask, threshold) & mask.bool()


@faulty(losing)
def loss_without_the_tool_mask(trainer, inputs):
    """The loss ignores the mask of tools' tokens, which the batch has."""
    return {name: value for name, value in inputs.items() if name != "tool_mask"}
