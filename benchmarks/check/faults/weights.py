"""Faults of weights: between steps, in what is saved, and where nothing moves as was asked for."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import TrainerCallback

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty

_NO_OP, _SAVING = ("optimizer-no-op",), ("eval-train-mismatch",)


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


@faulty("weights between steps", origin="own")
def weights_pulled_back(case: Case) -> Case:
    """A callback averages the weights with the first ones after each step."""

    def averaged(model, first):
        for name, weight in model.named_parameters():
            weight.lerp_(first[name], 0.5)

    return _between(case, averaged)


@faulty("weights between steps", origin="own", causes=_NO_OP)
def weights_rounded_between_steps(case: Case) -> Case:
    """A callback rounds the weights to bfloat16 after each step."""

    def rounded(model, first):
        for weight in model.parameters():
            weight.copy_(weight.bfloat16())

    return _between(case, rounded)


@faulty("weights between steps", origin="own")
def output_layer_loaded_again(case: Case) -> Case:
    """A callback loads the output layer's first weights before each step."""

    def again(model, first):
        model.lm_head.weight.copy_(first["lm_head.weight"])

    return _between(case, again, "on_step_begin")


@faulty("weights between steps", origin="own")
def noise_between_steps(case: Case) -> Case:
    """A callback adds a little noise to the weights after each step."""

    def noisy(model, first):
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=1e-4)

    return _between(case, noisy)


@faulty("weights between steps", origin="own", causes=_SAVING, setting="lora")
def adapter_begun_anew(case: Case) -> Case:
    """A callback sets the adapter back to its first weights after each step, to merge it."""

    def anew(model, first):
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.copy_(first[name])

    return _between(case, anew)


@faulty("weights between steps", origin="own")
def weights_clamped(case: Case) -> Case:
    """A callback clamps the weights after each step, as for another kind of network."""
    return _between(case, lambda model, first: [w.clamp_(-0.1, 0.1) for w in model.parameters()])


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


@faulty(
    "saved weights",
    origin="library",
    source="verl 5325, unsloth 2009, prime-rl PR 1456",
    causes=_SAVING,
)
def adapter_lost_at_save(case: Case) -> Case:
    """What is saved is the model without what training added to it."""
    return not_saved(case)


@faulty(
    "saved weights",
    origin="known",
    source="unsloth 2009: an adapter with alpha 0",
    causes=_SAVING,
    setting="lora",
)
def adapter_saved_as_nothing(case: Case) -> Case:
    """The saved adapter multiplies by 0."""

    def nothing(trained, first):
        return {n: w * 0 if "lora_B" in n else w for n, w in trained.items()}

    return _saving(case, nothing)


@faulty("saved weights", origin="own", causes=_SAVING)
def output_layer_saved_untrained(case: Case) -> Case:
    """The saved output layer is that from before training."""
    return _saving(
        case, lambda trained, first: {**trained, "lm_head.weight": first["lm_head.weight"]}
    )


@faulty("saved weights", origin="own", causes=_SAVING)
def saved_with_few_bits(case: Case) -> Case:
    """Saved weights have the precision of eight bits."""

    def rounded(trained, first):
        return {n: w.to(torch.float8_e4m3fn).to(w.dtype) for n, w in trained.items()}

    return _saving(case, rounded)


# nothing moves, as was asked for


@faulty("effect", origin="own", causes=_NO_OP, config={"learning_rate": 0.0})
def learning_rate_of_nothing(case: Case) -> Case:
    """The learning rate is 0."""
    return case


@faulty("effect", origin="known", source="TRL 3857", causes=("reward-signal",))
def rewards_without_contrast(case: Case) -> Case:
    """All completions of a prompt have the same reward: it judges the prompt."""

    def of_the_prompt(prompts, completions, **_):
        return [float(len(str(prompt)) % 5) for prompt in prompts]

    return replace(case, rewards=(of_the_prompt,))
