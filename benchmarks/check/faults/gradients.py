"""Faults of summing gradients over micro-batches, and of clipping them."""

from __future__ import annotations

import torch

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faults, faulty
from benchmarks.check.faults.ways import LOGPS, method

# the gradient


@faulty(Case.then)
def gradients_never_zeroed(trainer):
    trainer.model.zero_grad = lambda *args, **named: None


@faulty(method("training_step"))
def last_micro_batch_alone(trainer, usual, model, *args, **named):
    model.zero_grad()
    return usual(model, *args, **named)


@faulty(Case.then)
def backward_twice(trainer):
    backward = trainer.accelerator.backward

    def twice(loss, **named):
        backward(loss, retain_graph=True, **named)
        backward(loss, **named)

    trainer.accelerator.backward = twice


def _hooked(case, told):
    """The case in which the gradient of all weights with such a name is changed."""
    wanted, change = told

    def hook(trainer):
        for name, weight in trainer.model.named_parameters():
            if wanted in name and weight.requires_grad:
                weight.register_hook(change)

    return case.then(hook)


faults(
    _hooked,
    attention_gradient_halved=("self_attn", lambda gradient: gradient / 2),
    embedding_gradient_dropped=("embed_tokens", lambda gradient: gradient * 0),
    noise_on_the_gradient=("mlp", lambda g: g + g.std() * torch.randn_like(g) / 100),
    gradient_of_a_layer_negated=("layers.0.mlp", lambda gradient: -gradient),
)


@faulty(method(LOGPS))
def half_of_each_reply_detached(trainer, usual, *args, **named):
    logps, *rest = usual(*args, **named)
    return torch.cat([logps[:, :4].detach(), logps[:, 4:]], 1), *rest


# clipping


def _clipping(case, clip):
    """The case in which `clip` is called with the usual function, parameters and the bound."""

    def instead(trainer):
        usual = trainer.accelerator.clip_grad_norm_

        def clipped(parameters, bound, **named):
            return clip(usual, list(parameters), bound)

        trainer.accelerator.clip_grad_norm_ = clipped

    return case.then(instead)


faults(
    _clipping,
    clipped_at_a_hundredth_of_the_norm=lambda usual, parameters, bound: usual(parameters, 0.01),
    norm_measured_and_not_clipped=lambda usual, parameters, bound: usual(parameters, torch.inf),
)


@faulty(_clipping)
def clipped_by_value(usual, parameters, bound):
    norm = usual(parameters, torch.inf)
    torch.nn.utils.clip_grad_value_(parameters, bound / 50)
    return norm


@faulty(_clipping)
def clipped_tensor_by_tensor(usual, parameters, bound):
    norm = usual(parameters, torch.inf)
    for parameter in parameters:
        usual([parameter], bound / 10)
    return norm
