"""Faults of log-probabilities that are kept: old ones, the reference's, and what corrects for another sampler."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import AutoModelForCausalLM

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty
from benchmarks.check.faults.scoring import chosen, normalised, plain, scored

_MISMATCH, _KL = ("sampler-mismatch",), ("kl-penalty",)
_TWICE = {"num_iterations": 2}


# what is old


def _old(case, change):
    class Trainer(case.trainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            output["old_per_token_logps"] = change(self, output["old_per_token_logps"])
            return output

    return replace(case, trainer=Trainer)


@faulty("old log-probabilities", origin="own", causes=_MISMATCH, config=_TWICE)
def old_logps_of_the_first_weights(case: Case) -> Case:
    """Old log-probabilities are those of the weights that training began with."""

    def first(trainer, logps, given):
        if not hasattr(trainer, "beginning"):
            trainer.beginning = AutoModelForCausalLM.from_pretrained(
                trainer.model.config._name_or_path
            ).float()
        return chosen(*normalised(plain(trainer.beginning, *given[1:])))

    return scored(case, first, "old")


@faulty(
    "old log-probabilities", origin="own", causes=_MISMATCH, config={**_TWICE, "temperature": 1.4}
)
def old_logps_at_temperature_one(case: Case) -> Case:
    """Old log-probabilities are at temperature 1, the policy's at 1.4."""

    def cold(trainer, logps, given):
        return chosen(*normalised(plain(*given)))

    return scored(case, cold, "old")


@faulty("old log-probabilities", origin="own", causes=_MISMATCH, config=_TWICE)
def old_logps_off_by_one(case: Case) -> Case:
    """Old log-probabilities stand one token too far."""
    return _old(case, lambda _, logps: logps.roll(1, 1))


@faulty("old log-probabilities", origin="own", causes=_MISMATCH, config=_TWICE, precision="float32")
def old_logps_in_bfloat16(case: Case) -> Case:
    """Old log-probabilities are kept in bfloat16."""
    return _old(case, lambda _, logps: logps.bfloat16().float())


@faulty("old log-probabilities", origin="own", causes=_MISMATCH, config=_TWICE)
def old_logps_of_other_rows(case: Case) -> Case:
    """Old log-probabilities are those of the next row."""
    return _old(case, lambda _, logps: logps.roll(1, 0))


@faulty(
    "old log-probabilities",
    "loss",
    origin="own",
    source="tt-blacksmith 731 has the same effect: nothing is off-policy",
    config=_TWICE,
    causes=("multi-step",),
    why="what was recorded as old is right, and the loss is not told of it: either was meant to be used",
)
def old_logps_thrown_away(case: Case) -> Case:
    """Each update takes its own log-probabilities for the old ones, so that the ratio is always 1."""

    class Trainer(case.trainer):
        def _compute_loss(self, model, inputs):
            return super()._compute_loss(model, {**inputs, "old_per_token_logps": None})

    return replace(case, trainer=Trainer)


@faulty(
    "old log-probabilities",
    "loss",
    origin="library",
    source="OpenRLHF 931",
    causes=("gradient-explosion",),
    why="a ratio is of old and new: the loss is told other old ones than were recorded, and its ratio explodes",
    config=_TWICE,
)
def ratio_blow_up(case: Case) -> Case:
    """The ratio of the least likely token of each micro-batch is e to the power of 20."""

    class Trainer(case.trainer):
        def _compute_loss(self, model, inputs):
            old, mask = inputs["old_per_token_logps"], inputs["completion_mask"].bool()
            rarest = (old == old.where(mask, 0.0).min()) & mask
            return super()._compute_loss(
                model, {**inputs, "old_per_token_logps": old - 20.0 * rarest}
            )

    return replace(case, trainer=Trainer)


# the reference


@faulty(
    "reference log-probabilities",
    origin="benchmark",
    source="TRL 3194",
    causes=_KL,
    config={"beta": 0.3},
)
def reference_of_another_model(case: Case) -> Case:
    """The reference is not what training began with, but a model that knows less."""

    def forgets(trainer):
        with torch.no_grad():
            for weight in trainer.ref_model.parameters():
                weight.mul_(0.9)

    return case.then(forgets)


@faulty("reference log-probabilities", origin="own", causes=_KL, config={"beta": 0.3})
def reference_follows_the_policy(case: Case) -> Case:
    """The reference is given the policy's weights at each generation, so that there is no penalty."""

    class Trainer(case.trainer):
        def _generate_and_score_completions(self, inputs):
            self.ref_model.load_state_dict(self.model.state_dict())
            return super()._generate_and_score_completions(inputs)

    return replace(case, trainer=Trainer)


@faulty(
    "reference log-probabilities",
    origin="own",
    causes=_KL,
    config={"beta": 0.3, "temperature": 1.4},
)
def reference_at_temperature_one(case: Case) -> Case:
    """The reference's log-probabilities are at temperature 1, the policy's at 1.4."""

    def cold(trainer, logps, given):
        return chosen(*normalised(plain(*given)))

    return scored(case, cold, "reference")


@faulty("reference log-probabilities", origin="own", causes=_KL, config={"beta": 0.3})
def reference_of_other_rows(case: Case) -> Case:
    """The reference's log-probabilities are those of the next row."""
    return scored(case, lambda _, logps, given: logps.roll(1, 0), "reference")


@faulty("reference log-probabilities", origin="own", causes=_KL, setting="lora+kl")
def reference_with_the_adapter(case: Case) -> Case:
    """The adapter stays on while the reference's log-probabilities are computed."""

    class Trainer(case.trainer):
        def _generate_and_score_completions(self, inputs):
            from contextlib import nullcontext

            self.model.disable_adapter = nullcontext
            return super()._generate_and_score_completions(inputs)

    return replace(case, trainer=Trainer)


# corrections for another sampler

_ENGINE = {"setting": "engine-token-truncate", "since": "1.16.0", "causes": _MISMATCH}


def _noisy_engine(case):
    """Its weights are in bfloat16, so that there is something to correct."""

    def rounded(trainer):
        engine = trainer.vllm_generation
        sync = engine.sync_weights

        def synced():
            sync()
            with torch.no_grad():
                for weight in engine.model.parameters():
                    weight.copy_(weight.bfloat16())

        engine.sync_weights = synced

    return case.then(rounded)


def _weighted(case, change):
    class Trainer(case.trainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            weights = change(output["importance_sampling_ratio"], output)
            return {**output, "importance_sampling_ratio": weights}

    return replace(_noisy_engine(case), trainer=Trainer)


@faulty("importance weights", origin="own", **_ENGINE)
def importance_weights_of_one(case: Case) -> Case:
    """All weights are 1, so that nothing is corrected."""
    return _weighted(case, lambda weights, _: weights * 0 + 1)


@faulty("importance weights", origin="own", **_ENGINE)
def importance_weights_upside_down(case: Case) -> Case:
    """The weight is the sampler's probability over the trainer's."""
    return _weighted(case, lambda weights, _: 1 / weights)


@faulty("importance weights", origin="own", **_ENGINE)
def importance_weights_of_whole_replies(case: Case) -> Case:
    """Each token has its reply's weight, where one by token was asked for."""

    def product(weights, batch):
        gap = batch["old_per_token_logps"] - batch["sampling_per_token_logps"]
        return (gap * batch["completion_mask"]).sum(1, keepdim=True).exp().expand_as(weights)

    return _weighted(case, product)


@faulty(
    "importance weights",
    origin="own",
    config={"vllm_importance_sampling_clip_max": 1.001},
    **_ENGINE,
)
def importance_weights_not_capped(case: Case) -> Case:
    """Weights were to be at most 1.001, and have no cap."""

    def uncapped(weights, batch):
        return (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]).exp()

    return _weighted(case, uncapped)
