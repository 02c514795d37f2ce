"""Faults of summing gradients over micro-batches, and of clipping them."""

from __future__ import annotations

import torch

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty
from benchmarks.check.faults.ways import LOGPS, method

# the gradient


@faulty(Case.then)
def gradients_never_zeroed(trainer):
    """Each step is made on the sum of all gradients."""
    trainer.model.zero_grad = lambda *args, **named: None


@faulty(method("training_step"))
def last_micro_batch_alone(trainer, usual, model, *args, **named):
    """Gradients are zeroed before each micro-batch, so that the last one's is all that is left."""
    model.zero_grad()
    return usual(model, *args, **named)


@faulty(Case.then)
def backward_twice(trainer):
    """Each micro-batch is gone through backwards twice."""
    backward = trainer.accelerator.backward

    def twice(loss, **named):
        backward(loss, retain_graph=True, **named)
        backward(loss, **named)

    trainer.accelerator.backward = twice


def _hooked(case, wanted, change):
    def hook(trainer):
        for name, weight in trainer.model.named_parameters():
            if wanted in name and weight.requires_grad:
                weight.register_hook(change)

    return case.then(hook)


@faulty()
def attention_gradient_halved(case: Case) -> Case:
    """The gradient of attention's projections is halved on its way."""
    return _hooked(case, "self_attn", lambda gradient: gradient / 2)


@faulty()
def embedding_gradient_dropped(case: Case) -> Case:
    """The embedding's gradient is set to 0, though nobody froze it."""
    return _hooked(case, "embed_tokens", lambda gradient: gradient * 0)


@faulty()
def noise_on_the_gradient(case: Case) -> Case:
    """Noise of a hundredth of its size is added to the gradient."""
    return _hooked(case, "mlp", lambda g: g + g.std() * torch.randn_like(g) / 100)


@faulty()
def gradient_of_a_layer_negated(case: Case) -> Case:
    """The gradient of the first layer's MLP has the wrong sign, as from a backward pass of one's own."""
    return _hooked(case, "layers.0.mlp", lambda gradient: -gradient)


@faulty(method(LOGPS))
def half_of_each_reply_detached(trainer, usual, *args, **named):
    """Log-probabilities of the first four tokens have their value and no gradient."""
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


@faulty(_clipping)
def clipped_at_a_hundredth_of_the_norm(usual, parameters, bound):
    """Gradients are clipped at 0.01, where 1 was asked for."""
    return usual(parameters, 0.01)


@faulty(_clipping)
def norm_measured_and_not_clipped(usual, parameters, bound):
    """The norm is measured, and nothing is clipped."""
    return usual(parameters, torch.inf)


@faulty(_clipping)
def clipped_by_value(usual, parameters, bound):
    """Each value of the gradient is clipped, instead of its norm."""
    norm = usual(parameters, torch.inf)
    torch.nn.utils.clip_grad_value_(parameters, bound / 50)
    return norm


@faulty(_clipping)
def clipped_tensor_by_tensor(usual, parameters, bound):
    """Each tensor is clipped to the bound by itself."""
    norm = usual(parameters, torch.inf)
    for parameter in parameters:
        usual([parameter], bound / 10)
    return norm
