"""Faults of log-probabilities that are kept: old ones, the reference's, and what corrects for another sampler."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import torch
from transformers import AutoModelForCausalLM

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty
from benchmarks.check.faults.ways import (
    chosen,
    cold,
    generated,
    losing,
    method,
    normalised,
    plain,
    scored,
)

_generating = method("_generate_and_score_completions")


# what is old


def _old(case, change):
    name = "old_per_token_logps"
    return generated(case, lambda _, batch: {**batch, name: change(batch[name])})


@faulty(partial(scored, which="old"))
def old_logps_of_the_first_weights(trainer, logps, given):
    """Old log-probabilities are those of the weights that training began with."""
    if not hasattr(trainer, "beginning"):
        name = trainer.model.config._name_or_path
        trainer.beginning = AutoModelForCausalLM.from_pretrained(name).float()
    return chosen(*normalised(plain(trainer.beginning, *given[1:])))


@faulty()
def old_logps_at_temperature_one(case: Case) -> Case:
    """Old log-probabilities are at temperature 1, the policy's at 1.4."""
    return cold(case, "old")


@faulty(_old)
def old_logps_off_by_one(logps):
    """Old log-probabilities stand one token too far."""
    return logps.roll(1, 1)


@faulty(_old)
def old_logps_in_bfloat16(logps):
    """Old log-probabilities are kept in bfloat16."""
    return logps.bfloat16().float()


@faulty(_old)
def old_logps_of_other_rows(logps):
    """Old log-probabilities are those of the next row."""
    return logps.roll(1, 0)


@faulty(losing)
def old_logps_thrown_away(trainer, inputs):
    """Each update takes its own log-probabilities for the old ones, so that the ratio is always 1."""
    return {**inputs, "old_per_token_logps": None}


@faulty(losing)
def ratio_blow_up(trainer, inputs):
    """The ratio of the least likely token of each micro-batch is e to the power of 20."""
    old, mask = inputs["old_per_token_logps"], inputs["completion_mask"].bool()
    rarest = (old == old.where(mask, 0.0).min()) & mask
    return {**inputs, "old_per_token_logps": old - 20.0 * rarest}


# the reference


@faulty(Case.then)
def reference_of_another_model(trainer):
    """The reference is not what training began with, but a model that knows less."""
    with torch.no_grad():
        for weight in trainer.ref_model.parameters():
            weight.mul_(0.9)


@faulty(_generating)
def reference_follows_the_policy(trainer, usual, inputs):
    """The reference is given the policy's weights at each generation, so that there is no penalty."""
    trainer.ref_model.load_state_dict(trainer.model.state_dict())
    return usual(inputs)


@faulty()
def reference_at_temperature_one(case: Case) -> Case:
    """The reference's log-probabilities are at temperature 1, the policy's at 1.4."""
    return cold(case, "reference")


@faulty(partial(scored, which="reference"))
def reference_of_other_rows(trainer, logps, given):
    """The reference's log-probabilities are those of the next row."""
    return logps.roll(1, 0)


@faulty(_generating)
def reference_with_the_adapter(trainer, usual, inputs):
    """The adapter stays on while the reference's log-probabilities are computed."""
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


def _weighted(case, change):
    name = "importance_sampling_ratio"
    changed = generated(case, lambda _, batch: {**batch, name: change(batch[name], batch)})
    return changed.then(_noisy_engine)


@faulty(_weighted)
def importance_weights_of_one(weights, batch):
    """All weights are 1, so that nothing is corrected."""
    return weights * 0 + 1


@faulty(_weighted)
def importance_weights_upside_down(weights, batch):
    """The weight is the sampler's probability over the trainer's."""
    return 1 / weights


@faulty(_weighted)
def importance_weights_of_whole_replies(weights, batch):
    """Each token has its reply's weight, where one by token was asked for."""
    gap = batch["old_per_token_logps"] - batch["sampling_per_token_logps"]
    return (gap * batch["completion_mask"]).sum(1, keepdim=True).exp().expand_as(weights)


@faulty(_weighted)
def importance_weights_not_capped(weights, batch):
    """Weights were to be at most 1.001, and have no cap."""
    return (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]).exp()
