"""Faults of log-probabilities that are kept: old ones, the reference's, and what corrects for another sampler."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import torch

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faults, faulty
from benchmarks.check.faults.ways import (
    batched,
    beginning,
    chosen,
    cold,
    losing,
    method,
    normalised,
    plain,
    scored,
)

_generating = method("_generate_and_score_completions")


# what is old


@faulty(partial(scored, which="old"))
def old_logps_of_the_first_weights(trainer, logps, given):
    if not hasattr(trainer, "beginning"):
        trainer.beginning = beginning(trainer)
    return chosen(*normalised(plain(trainer.beginning, *given[1:])))


faults(
    cold,
    old_logps_at_temperature_one="old",
    reference_at_temperature_one="reference",
)

faults(
    batched("old_per_token_logps"),
    old_logps_off_by_one=lambda trainer, logps, batch: logps.roll(1, 1),
    old_logps_in_bfloat16=lambda trainer, logps, batch: logps.bfloat16().float(),
    old_logps_of_other_rows=lambda trainer, logps, batch: logps.roll(1, 0),
)


@faulty(losing)
def old_logps_thrown_away(trainer, inputs):
    return {**inputs, "old_per_token_logps": None}


@faulty(losing)
def ratio_blow_up(trainer, inputs):
    old, mask = inputs["old_per_token_logps"], inputs["completion_mask"].bool()
    rarest = (old == old.where(mask, 0.0).min()) & mask
    return {**inputs, "old_per_token_logps": old - 20.0 * rarest}


# the reference


@faulty(Case.then)
def reference_of_another_model(trainer):
    with torch.no_grad():
        for weight in trainer.ref_model.parameters():
            weight.mul_(0.9)


@faulty(_generating)
def reference_follows_the_policy(trainer, usual, inputs):
    trainer.ref_model.load_state_dict(trainer.model.state_dict())
    return usual(inputs)


@faulty(partial(scored, which="reference"))
def reference_of_other_rows(trainer, logps, given):
    return logps.roll(1, 0)


@faulty(_generating)
def reference_with_the_adapter(trainer, usual, inputs):
    trainer.model.disable_adapter = nullcontext
    return usual(inputs)


# corrections for another sampler


def _noisy_engine(trainer):
    """Its weights are in bfloat16, so that there is something to correct."""
    engine = trainer.vllm_generation
    sync = engine.sync_weights

    def synced():
        sync()
        with torch.no_grad():
            for weight in engine.model.parameters():
                weight.copy_(weight.bfloat16())

    engine.sync_weights = synced


def _gap(batch):
    return batch["old_per_token_logps"] - batch["sampling_per_token_logps"]


def _weighted(case, change):
    return batched("importance_sampling_ratio")(case, change).then(_noisy_engine)


faults(
    _weighted,
    importance_weights_of_one=lambda trainer, weights, batch: weights * 0 + 1,
    importance_weights_upside_down=lambda trainer, weights, batch: 1 / weights,
    importance_weights_not_capped=lambda trainer, weights, batch: _gap(batch).exp(),
    importance_weights_of_whole_replies=lambda trainer, weights, batch: (
        (_gap(batch) * batch["completion_mask"]).sum(1, keepdim=True).exp().expand_as(weights)
    ),
)
