"""Faults of summing gradients over micro-batches, and of clipping them."""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty

_NO_OP = ("optimizer-no-op",)


# the gradient


@faulty("gradient", origin="benchmark", source="TrenTorch PR 187")
def gradients_never_zeroed(case: Case) -> Case:
    """Each step is made on the sum of all gradients."""

    def kept(trainer):
        trainer.model.zero_grad = lambda *args, **named: None

    return case.then(kept)


@faulty(
    "gradient",
    origin="own",
    source="DeepSpeed PR 7967 drops all micro-batches but the first",
    causes=("loss-aggregation",),
)
def last_micro_batch_alone(case: Case) -> Case:
    """Gradients are zeroed before each micro-batch, so that the last one's is all that is left."""

    class Trainer(case.trainer):
        def training_step(self, model, *args, **named):
            model.zero_grad()
            return super().training_step(model, *args, **named)

    return replace(case, trainer=Trainer)


@faulty("gradient", origin="own", causes=("loss-aggregation",))
def backward_twice(case: Case) -> Case:
    """Each micro-batch is gone through backwards twice."""

    def doubled(trainer):
        backward = trainer.accelerator.backward

        def twice(loss, **named):
            backward(loss, retain_graph=True, **named)
            backward(loss, **named)

        trainer.accelerator.backward = twice

    return case.then(doubled)


def _hooked(case, wanted, change):
    def hook(trainer):
        for name, weight in trainer.model.named_parameters():
            if wanted in name and weight.requires_grad:
                weight.register_hook(change)

    return case.then(hook)


@faulty("gradient", origin="own")
def attention_gradient_halved(case: Case) -> Case:
    """The gradient of attention's projections is halved on its way."""
    return _hooked(case, "self_attn", lambda gradient: gradient / 2)


@faulty("gradient", origin="own", causes=_NO_OP)
def embedding_gradient_dropped(case: Case) -> Case:
    """The embedding's gradient is set to 0, though nobody froze it."""
    return _hooked(case, "embed_tokens", lambda gradient: gradient * 0)


@faulty("gradient", origin="own")
def noise_on_the_gradient(case: Case) -> Case:
    """Noise of a hundredth of its size is added to the gradient."""
    return _hooked(case, "mlp", lambda g: g + g.std() * torch.randn_like(g) / 100)


@faulty("gradient", origin="own")
def gradient_of_a_layer_negated(case: Case) -> Case:
    """The gradient of the first layer's MLP has the wrong sign, as from a backward pass of one's own."""
    return _hooked(case, "layers.0.mlp", lambda gradient: -gradient)


@faulty("gradient", origin="own", source="prime-rl 2362 is a trainer's own backward pass")
def half_of_each_reply_detached(case: Case) -> Case:
    """Log-probabilities of the first four tokens have their value and no gradient."""

    class Trainer(case.trainer):
        def _get_per_token_logps_and_entropies(self, *args, **named):
            logps, *rest = super()._get_per_token_logps_and_entropies(*args, **named)
            return torch.cat([logps[:, :4].detach(), logps[:, 4:]], 1), *rest

    return replace(case, trainer=Trainer)


# clipping


def _clipping(case, clip):
    """The case in which `clip` is called with the usual function, parameters and the bound."""

    def instead(trainer):
        usual = trainer.accelerator.clip_grad_norm_

        def clipped(parameters, bound, **named):
            return clip(usual, list(parameters), bound)

        trainer.accelerator.clip_grad_norm_ = clipped

    return case.then(instead)


@faulty("clip", origin="own", causes=_NO_OP)
def clipped_at_a_hundredth_of_the_norm(case: Case) -> Case:
    """Gradients are clipped at 0.01, where 1 was asked for."""
    return _clipping(case, lambda usual, parameters, bound: usual(parameters, 0.01))


@faulty("clip", origin="own", causes=("gradient-explosion",), config={"max_grad_norm": 0.05})
def norm_measured_and_not_clipped(case: Case) -> Case:
    """The norm is measured, and nothing is clipped."""
    return _clipping(case, lambda usual, parameters, bound: usual(parameters, torch.inf))


@faulty("clip", origin="own", config={"max_grad_norm": 0.05})
def clipped_by_value(case: Case) -> Case:
    """Each value of the gradient is clipped, instead of its norm."""

    def by_value(usual, parameters, bound):
        norm = usual(parameters, torch.inf)
        torch.nn.utils.clip_grad_value_(parameters, bound / 50)
        return norm

    return _clipping(case, by_value)


@faulty("clip", origin="own", config={"max_grad_norm": 0.05})
def clipped_tensor_by_tensor(case: Case) -> Case:
    """Each tensor is clipped to the bound by itself."""

    def alone(usual, parameters, bound):
        norm = usual(parameters, torch.inf)
        for parameter in parameters:
            usual([parameter], bound / 10)
        return norm

    return _clipping(case, alone)
