"""Faults of weights: between steps, in what is saved, and where nothing moves as was asked for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from transformers import TrainerCallback

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faults, faulty

# weights between steps


def _between(case, change, event="on_step_end"):
    """The case with a callback that makes `change` to the model, and to what its weights were at first."""

    def added(trainer):
        first = {n: w.detach().clone() for n, w in trainer.model.named_parameters()}

        def called(self, args, state, control, **named):
            with torch.no_grad():
                change(trainer.model, first)

        trainer.add_callback(type("Between", (TrainerCallback,), {event: called})())

    return case.then(added)


@faulty(_between)
def weights_pulled_back(model, first):
    for name, weight in model.named_parameters():
        weight.lerp_(first[name], 0.5)


@faulty(_between)
def weights_rounded_between_steps(model, first):
    for weight in model.parameters():
        weight.copy_(weight.bfloat16())


@faulty(partial(_between, event="on_step_begin"))
def output_layer_loaded_again(model, first):
    model.lm_head.weight.copy_(first["lm_head.weight"])


@faulty(_between)
def noise_between_steps(model, first):
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight), alpha=1e-4)


@faulty(_between)
def adapter_begun_anew(model, first):
    for name, weight in model.named_parameters():
        if "lora_" in name:
            weight.copy_(first[name])


@faulty(_between)
def weights_clamped(model, first):
    for weight in model.parameters():
        weight.clamp_(-0.1, 0.1)


# saving


def _saving(case, change):
    """The case in which `change` is made to the weights that are saved: of them, and of those at first."""

    class Trainer(case.trainer):
        def __init__(self, *args, **named):
            super().__init__(*args, **named)
            self.first = {n: w.detach().clone() for n, w in self.model.state_dict().items()}

        def _save(self, output_dir=None, state_dict=None):
            trained = state_dict or self.model.state_dict()
            super()._save(output_dir, change(dict(trained), self.first))

    return replace(case, trainer=Trainer)


def not_saved(case: Case) -> Case:
    """Return the case that saves what training began with."""
    return _saving(case, lambda trained, first: first)


faults(
    _saving,
    adapter_lost_at_save=lambda trained, first: first,
    adapter_saved_as_nothing=lambda trained, first: (
        {n: w * 0 if "lora_B" in n else w for n, w in trained.items()}
    ),
    output_layer_saved_untrained=lambda trained, first: (
        {**trained, "lm_head.weight": first["lm_head.weight"]}
    ),
    saved_with_few_bits=lambda trained, first: (
        {n: w.to(torch.float8_e4m3fn).to(w.dtype) for n, w in trained.items()}
    ),
)


# nothing moves, as was asked for


@faulty()
def learning_rate_of_nothing(case: Case) -> Case:
    return case


@faulty()
def rewards_without_contrast(case: Case) -> Case:
    def of_the_prompt(prompts, completions, **_):
        return [float(len(str(prompt)) % 5) for prompt in prompts]

    return replace(case, rewards=(of_the_prompt,))
