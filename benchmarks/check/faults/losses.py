"""Faults of the loss."""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty

_KL, _STEPS, _AGGREGATION = ("kl-penalty",), ("multi-step",), ("loss-aggregation",)
_TWICE = {"num_iterations": 2, "learning_rate": 3e-3}


def _told(case, **values):
    """The case whose trainer has these values, whatever its arguments say."""

    def tell(trainer):
        for name, value in values.items():
            setattr(trainer, name, value)

    return case.then(tell)


def _loss(case, change):
    """The case whose loss is `change` of the right one."""

    class Trainer(case.trainer):
        def _compute_loss(self, model, inputs):
            return change(self, super()._compute_loss(model, inputs), inputs)

    return replace(case, trainer=Trainer)


def _own_loss(case, by_token):
    """The case whose loss is the user's own: `by_token` of ratio, advantages and log-probabilities, over all tokens."""

    class Trainer(case.trainer):
        def _compute_loss(self, model, inputs):
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
            seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
            keep, mask = inputs["completion_ids"].shape[1], inputs["completion_mask"]
            logps = self._get_per_token_logps_and_entropies(model, ids, seen, keep)[0]
            old = inputs.get("old_per_token_logps")
            gap = logps - (logps.detach() if old is None else old)
            values = by_token(self, gap, inputs["advantages"][:, None], logps, inputs)
            tokens = inputs["num_items_in_batch"]
            return (values * mask).sum() / tokens

    return replace(case, trainer=Trainer)


def _clipped(trainer, ratio, advantages):
    low, high = 1 - trainer.epsilon_low, 1 + trainer.epsilon_high
    return -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)


def _reference_gap(logps, inputs):
    return inputs["ref_per_token_logps"] - logps


@faulty(
    "loss",
    origin="library",
    source="verl commit a65c9157",
    causes=_KL,
    config={"beta": 0.3, "num_iterations": 1},
)
def kl_subtracted(case: Case) -> Case:
    """The KL term has the wrong sign."""

    def by_token(trainer, gap, advantages, logps, inputs):
        left = _reference_gap(logps, inputs)
        return _clipped(trainer, gap.exp(), advantages) - trainer.beta * (left.exp() - left - 1)

    return _own_loss(case, by_token)


@faulty(
    "loss",
    origin="benchmark",
    source="OpenRLHF PR 1309, SkyRL PR 1445",
    causes=_KL,
    config={"beta": 1.0},
)
def k1_as_a_loss(case: Case) -> Case:
    """The KL term is the difference of log-probabilities, whose gradient is 0 on average."""

    def by_token(trainer, gap, advantages, logps, inputs):
        left = _reference_gap(logps, inputs)
        return _clipped(trainer, gap.exp(), advantages) - trainer.beta * left

    return _own_loss(case, by_token)


@faulty("loss", origin="own", causes=_KL, config={"beta": 0.3})
def kl_twice_as_strong(case: Case) -> Case:
    """The trainer's beta is twice what its arguments say."""
    return _told(case, beta=0.6)


@faulty("loss", origin="own", causes=_KL, config={"beta": 0.3})
def kl_without_gradient(case: Case) -> Case:
    """The KL term is added to the loss as a number, without a gradient."""

    def by_token(trainer, gap, advantages, logps, inputs):
        left = _reference_gap(logps.detach(), inputs)
        return _clipped(trainer, gap.exp(), advantages) + trainer.beta * (left.exp() - left - 1)

    return _own_loss(case, by_token)


@faulty(
    "loss",
    origin="library",
    source="the original report tried this formula",
    causes=_KL,
    config={"beta": 0.3},
)
def kl_reversed(case: Case) -> Case:
    """The KL term has policy and reference exchanged."""

    def by_token(trainer, gap, advantages, logps, inputs):
        left = -_reference_gap(logps, inputs)
        return _clipped(trainer, gap.exp(), advantages) + trainer.beta * (left.exp() - left - 1)

    return _own_loss(case, by_token)


@faulty("loss", origin="benchmark", source="fla-org/flash-linear-attention 1073")
def loss_negated_twice(case: Case) -> Case:
    """The objective is negated once more, so that what was rewarded becomes less likely."""
    return _loss(case, lambda _, loss, inputs: -loss)


@faulty("loss", origin="own", causes=_AGGREGATION, config={"loss_type": "grpo"})
def not_divided_by_accumulation(case: Case) -> Case:
    """The loss of each micro-batch is not divided by their number."""
    return _loss(case, lambda t, loss, inputs: loss * t.args.gradient_accumulation_steps)


@faulty("loss", origin="own", causes=_AGGREGATION)
def sum_for_the_mean(case: Case) -> Case:
    """The loss is a sum over tokens."""
    return _loss(case, lambda _, loss, inputs: loss * inputs["num_items_in_batch"])


@faulty("loss", origin="own", causes=_AGGREGATION, config={"loss_type": "bnpo"})
def padding_in_the_denominator(case: Case) -> Case:
    """The mean is over all places, padding included."""

    def over_all(trainer, loss, inputs):
        mask = inputs["completion_mask"]
        return loss * mask.sum() / mask.numel()

    return _loss(case, over_all)


@faulty("loss", origin="own", causes=_AGGREGATION, config={"loss_type": "dr_grpo"})
def another_loss_type(case: Case) -> Case:
    """Dr. GRPO was asked for, and GRPO's mean over each reply is computed."""
    return _told(case, loss_type="grpo")


@faulty("loss", origin="own", causes=_STEPS, config=_TWICE)
def clipped_at_a_hundredth(case: Case) -> Case:
    """The ratio is clipped at 0.01 around 1, where 0.2 was asked for."""
    return _told(case, epsilon_low=0.01, epsilon_high=0.01)


@faulty(
    "loss", origin="own", causes=_STEPS, config={**_TWICE, "epsilon": 0.05, "epsilon_high": 0.6}
)
def upper_bound_ignored(case: Case) -> Case:
    """The upper bound of the ratio was to be 0.6, and is the lower one's 0.05."""
    return _told(case, epsilon_high=0.05)


@faulty("loss", origin="own", causes=_STEPS, config=_TWICE)
def never_clipped(case: Case) -> Case:
    """The ratio is not clipped."""
    return _own_loss(case, lambda _, gap, advantages, logps, inputs: -gap.exp() * advantages)


@faulty("loss", origin="own", causes=_STEPS, config=_TWICE)
def ratio_left_out(case: Case) -> Case:
    """Second updates are made without the ratio, as if they were on-policy."""
    return _own_loss(case, lambda _, gap, advantages, logps, inputs: -logps * advantages)


@faulty("loss", origin="own", causes=_STEPS, config=_TWICE)
def maximum_for_the_minimum(case: Case) -> Case:
    """Of the clipped and the plain objective the larger is taken."""

    def by_token(trainer, gap, advantages, logps, inputs):
        low, high = 1 - trainer.epsilon_low, 1 + trainer.epsilon_high
        ratio = gap.exp()
        return -torch.maximum(ratio * advantages, ratio.clamp(low, high) * advantages)

    return _own_loss(case, by_token)


@faulty(
    "loss",
    origin="known",
    source="TRL 5814",
    causes=_STEPS,
    config={**_TWICE, "importance_sampling_level": "sequence"},
)
def ratio_of_sequences_by_sum(case: Case) -> Case:
    """The ratio of a sequence is the product over its tokens, where the geometric mean was asked for."""

    def by_token(trainer, gap, advantages, logps, inputs):
        total = (gap * inputs["completion_mask"]).sum(1, keepdim=True)
        return _clipped(trainer, total.exp(), advantages)

    return _own_loss(case, by_token)


@faulty(
    "loss", origin="own", causes=_STEPS, config={**_TWICE, "importance_sampling_level": "sequence"}
)
def ratio_by_token_though_by_sequence(case: Case) -> Case:
    """A ratio for each sequence was asked for, and each token has its own."""
    return _told(case, importance_sampling_level="token")


@faulty("loss", origin="own", causes=_STEPS, config={**_TWICE, "delta": 1.05})
def delta_ignored(case: Case) -> Case:
    """The ratio was to be at most 1.05 on either side, and is not held."""

    def lifted(trainer):
        trainer.args.delta = None

    return case.then(lifted)


@faulty("loss", origin="own")
def entropy_bonus_unasked(case: Case) -> Case:
    """A bonus for surprising tokens is added, which nobody asked for."""

    def by_token(trainer, gap, advantages, logps, inputs):
        return _clipped(trainer, gap.exp(), advantages) + 0.1 * logps

    return _own_loss(case, by_token)


@faulty("loss", origin="own", causes=("token-masking",))
def first_token_weighs_most(case: Case) -> Case:
    """Tokens are weighted by their place, the first ten times the last."""

    def by_token(trainer, gap, advantages, logps, inputs):
        places = torch.linspace(1, 0.1, logps.shape[1])
        return _clipped(trainer, gap.exp(), advantages) * places

    return _own_loss(case, by_token)


@faulty("loss", origin="own", causes=("advantage-scaling",))
def short_replies_skipped(case: Case) -> Case:
    """The loss of a micro-batch is 0 where its longest reply is at the limit."""

    def skipped(trainer, loss, inputs):
        return loss * 0 if inputs["completion_mask"].all(1).any() else loss

    return _loss(case, skipped)


@faulty(
    "loss",
    "micro-batches",
    origin="own",
    causes=("advantage-scaling",),
    why="the loss is told other advantages than were recorded: it computes rightly from what it is told",
)
def advantages_made_positive(case: Case) -> Case:
    """The loss takes the size of advantages without their sign."""

    class Trainer(case.trainer):
        def _compute_loss(self, model, inputs):
            return super()._compute_loss(
                model, {**inputs, "advantages": inputs["advantages"].abs()}
            )

    return replace(case, trainer=Trainer)


@faulty("loss", origin="own", since="0.29.0", config={"top_entropy_quantile": 0.3})
def high_entropy_mask_turned_round(case: Case) -> Case:
    """The tokens of high entropy were to be trained, and those of low entropy are."""

    class Trainer(case.trainer):
        def get_high_entropy_mask(self, entropies, mask, threshold):
            return ~super().get_high_entropy_mask(entropies, mask, threshold) & mask.bool()

    return replace(case, trainer=Trainer)


@faulty(
    "loss",
    origin="known",
    source="TRL PR 4975",
    causes=("token-masking",),
    setting="tools",
    since="1.0.0",
)
def loss_without_the_tool_mask(case: Case) -> Case:
    """The loss ignores the mask of tools' tokens, which the batch has."""

    class Trainer(case.trainer):
        def _compute_loss(self, model, inputs):
            kept = {name: value for name, value in inputs.items() if name != "tool_mask"}
            return super()._compute_loss(model, kept)

    return replace(case, trainer=Trainer)
