"""Faults that are planted in verl's driver, in its workers and around them, by name: each is the segment that it stands in, and a patch.

Those with a number are of an issue or a pull request of verl.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import verl_driver
from torch import Tensor
from verl.trainer.ppo import core_algos, ray_trainer, rollout_corr_helper
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.utils import losses

TRAINER = ray_trainer.RayPPOTrainer
FAULTS: dict[str, tuple[str, Callable[[ExitStack], None], list[str]]] = {}


def fault(name: str, segment: str, *overrides: str) -> Callable[[Any], Any]:
    def named(plant: Any) -> Any:
        FAULTS[name] = segment, plant, [*overrides]
        return plant

    return named


def instead(stack: ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put what `make` returns of it in its place."""
    stack.enter_context(mock.patch.object(owner, name, make(getattr(owner, name))))


def before_update(name: str, segment: str, change: Callable[[Any], None], *overrides: str) -> None:
    """Plant a change of the batch just before the actor is updated by it."""

    def plant(stack: ExitStack) -> None:
        def made(inner: Any) -> Any:
            def update(self: Any, batch: Any) -> Any:
                change(batch)
                return inner(self, batch)

            return update

        instead(stack, TRAINER, "_update_actor", made)

    FAULTS[name] = segment, plant, [*overrides]


def after(name: str, segment: str, owner: Any, what: str, change: Any, *overrides: str) -> None:
    """Plant a change of what a function returns: change(returned, its arguments)."""

    def plant(stack: ExitStack) -> None:
        def made(inner: Any) -> Any:
            def called(*given: Any, **named: Any) -> Any:
                found = inner(*given, **named)
                changed = change(found, (given, named))
                return found if changed is None else changed

            return called

        instead(stack, owner, what, made)

    FAULTS[name] = segment, plant, [*overrides]


def put(key: str, make: Callable[[Tensor, Any], Tensor]) -> Callable[..., None]:
    """Return a change of one tensor of a batch."""

    def change(batch: Any, *_: Any) -> None:
        batch.batch[key] = make(batch.batch[key], batch)

    return change


COOL = "actor_rollout_ref.rollout.temperature=0.7"
OLD, REFERENCE, WEIGHTS = (
    "old log-probabilities",
    "reference log-probabilities",
    "importance weights",
)
IN_REWARD = ("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.5")
CORRECTED = ("algorithm.rollout_correction.rollout_is=token", "+coarse=True", COOL)
SAMPLER = verl_driver.Sampler

# --- what the sampler gives

after(
    "raw sampler log-probabilities at another temperature (4162)",
    "sampler",
    SAMPLER,
    "drawn",
    lambda found, given: (found[0], given[0][2].log_softmax(-1)),
    COOL,
)
after(
    "the sampler has none of the weights (3159)",
    "sampler",
    SAMPLER,
    "drawn",
    lambda found, given: (found[0], (given[0][2] * 0.5).log_softmax(-1)),
)
after(
    "positions of replies padded on the left (4159)",
    OLD,
    SAMPLER,
    "generate_sequences",
    put("position_ids", lambda ids, batch: torch.cat([ids[:, :64], ids[:, 64:].roll(3, 1)], 1)),
)
after(
    "prompts without the generation prompt", "prompt", SAMPLER, "rendered", lambda ids, _: ids[:-4]
)
after(
    "prompts cut on the wrong side",
    "prompt",
    SAMPLER,
    "cut",
    lambda _, given: given[0][1][:12],
    "data.truncation=left",
    "data.max_prompt_length=12",
)
after("the system message is lost", "prompt", SAMPLER, "rendered", lambda ids, _: ids[5:])

# --- what the driver makes of it


@fault("uid mixed by balancing", "groups")
def _(stack: ExitStack) -> None:
    def made(inner: Any) -> Any:
        def balanced(self: Any, batch: Any, *given: Any, **named: Any) -> Any:
            own = batch.non_tensor_batch["uid"].copy()
            inner(self, batch, *given, **named)
            batch.non_tensor_batch["uid"] = own

        return balanced

    instead(stack, TRAINER, "_balance_batch", made)


@fault("a uid for each row and not for each prompt", "groups")
def _(stack: ExitStack) -> None:
    def change(batch: Any) -> None:
        for n in range(len(batch)):
            batch.non_tensor_batch["uid"][n] = str(n)

    def made(inner: Any) -> Any:
        def reward(batch: Any) -> Any:
            change(batch)
            return inner(batch)

        return reward

    instead(stack, ray_trainer, "extract_reward", made)


after(
    "rewards of other rows, as the batch was shuffled (2185)",
    "rewards",
    ray_trainer,
    "extract_reward",
    lambda found, _: (found[0].roll(1, 0), found[1]),
)
after(
    "rewards clipped after the function",
    "rewards",
    ray_trainer,
    "extract_reward",
    lambda found, _: (found[0].clamp(max=1.3), found[1]),
)
after(
    "the KL is in the rewards unasked (644)",
    "rewards",
    ray_trainer,
    "extract_reward",
    lambda found, given: (found[0] - 0.01 * (found[0] != 0), found[1]),
)
after(
    "tokens of tools are counted (2543)",
    "loss mask",
    TRAINER,
    "_compute_old_log_prob",
    lambda _, given: put(
        "response_mask", lambda mask, batch: batch.batch["attention_mask"][:, 64:]
    )(given[0][1]),
    "+tools=True",
)
before_update(
    "padding is counted", "loss mask", put("response_mask", lambda mask, _: torch.ones_like(mask))
)
before_update(
    "the end of a reply is not counted",
    "loss mask",
    put("response_mask", lambda mask, _: mask * mask.roll(-1, 1)),
)
before_update(
    "the mask is shifted by one", "loss mask", put("response_mask", lambda mask, _: mask.roll(1, 1))
)
before_update(
    "the last token of a reply is lost",
    "tokens",
    put(
        "responses",
        lambda ids, batch: torch.where(batch.batch["response_mask"].roll(-1, 1) == 0, 256, ids),
    ),
)
before_update("replies of other rows", "tokens", put("responses", lambda ids, _: ids.roll(1, 0)))
before_update(
    "old log-probabilities of other rows",
    OLD,
    put("old_log_probs", lambda known, _: known.roll(1, 0)),
)
before_update(
    "old log-probabilities shifted by one",
    OLD,
    put("old_log_probs", lambda known, _: known.roll(1, 1)),
)


@fault("old log-probabilities without the temperature", OLD, COOL)
def _(stack: ExitStack) -> None:
    _at_one(stack, "_compute_old_log_prob")


@fault("the reference's without the temperature", REFERENCE, COOL)
def _(stack: ExitStack) -> None:
    _at_one(stack, "_compute_ref_log_prob")


def _at_one(stack: ExitStack, name: str) -> None:
    def made(inner: Any) -> Any:
        def computed(self: Any, batch: Any) -> Any:
            batch.meta_info["temperature"] = 1.0
            return inner(self, batch)

        return computed

    instead(stack, TRAINER, name, made)


@fault("the policy stands for the reference", REFERENCE)
def _(stack: ExitStack) -> None:
    def made(inner: Any) -> Any:
        def computed(self: Any, batch: Any) -> Any:
            found = self._compute_old_log_prob(batch)[0]
            return type(found).from_dict({"ref_log_prob": found.batch["old_log_probs"]})

        return computed

    instead(stack, TRAINER, "_compute_ref_log_prob", made)


def adv(name: str, make: Callable[[Tensor, Any], Tensor]) -> None:
    after(
        name,
        "advantages",
        ray_trainer,
        "compute_advantage",
        lambda _, given: put("advantages", make)(given[0][0]),
    )


adv("advantages of the other sign", lambda found, _: -found)
adv("advantages by the batch's spread", lambda found, batch: found / found.std())
adv("advantages of gains alone", lambda found, _: found.clamp(min=0))
adv(
    "advantages divided by the length",
    lambda found, batch: found / batch.batch["response_mask"].sum(1, keepdim=True),
)
adv("advantages of other rows", lambda found, _: found.roll(1, 0))
adv(
    "advantages of rows that are drawn anew (7956)",
    lambda found, _: found[torch.arange(len(found)).square() % len(found)],
)


@fault("advantages with the spread's biased estimate", "advantages")
def _(stack: ExitStack) -> None:
    instead(stack, torch, "std", lambda inner: lambda x, *a, **k: inner(x, unbiased=False))


def penalty(name: str, make: Callable[[Any], Any]) -> None:
    FAULTS[name] = (
        "rewards",
        lambda stack: instead(stack, core_algos, "kl_penalty", make),
        [*IN_REWARD],
    )


penalty(
    "the KL in the rewards has the other sign",
    lambda inner: lambda a, b, **k: -inner(a, b, **k) + 0.01,
)
penalty(
    "the KL in the rewards is of another estimate",
    lambda inner: lambda a, b, **_: inner(a, b, kl_penalty="abs"),
)
after(
    "importance weights the other way round",
    WEIGHTS,
    rollout_corr_helper,
    "compute_rollout_correction_weights",
    lambda found, _: (1 / found[0], found[1]),
    *CORRECTED,
)
after(
    "importance weights without a bound",
    WEIGHTS,
    rollout_corr_helper,
    "compute_rollout_correction_weights",
    lambda found, given: (given[1]["log_ratio"].exp(), found[1]),
    *CORRECTED,
    "algorithm.rollout_correction.rollout_is_threshold=1.0001",
)

# --- what a worker makes of it

ACTOR, ENGINE = "actor_rollout_ref.actor.", transformer_impl.FSDPEngineWithLMHead
WITH_KL, NO_KL = f"{ACTOR}kl_loss_coef=0.5", f"{ACTOR}use_kl_loss=False"


def in_loss(name: str, change: Callable[[dict[str, Any]], dict[str, Any]], *overrides: str) -> None:
    """Plant a change of what a policy's loss is given."""

    def made(inner: Any) -> Any:
        return lambda mode: lambda **given: inner(mode)(**given | change(given))

    FAULTS[name] = (
        "loss",
        lambda stack: instead(stack, losses, "get_policy_loss_fn", made),
        [*overrides],
    )


def within(name: str, what: str, make: Callable[[Any], Any], *overrides: str) -> None:
    """Plant a change of a function that the loss calls."""
    FAULTS[name] = "loss", lambda stack: instead(stack, losses, what, make), [*overrides]


def unclipped(given: dict[str, Any]) -> dict[str, Any]:
    free = {"clip_ratio_low": 1.0, "clip_ratio_high": 1e9, "clip_ratio_c": 1e9}
    return {"config": replace(given["config"], **free)}


def uncounted(given: dict[str, Any]) -> dict[str, Any]:
    given["config"].global_batch_info["batch_num_tokens"] = None
    return {}


in_loss("the loss is averaged by sequences", lambda _: {"loss_agg_mode": "seq-mean-token-mean"})
in_loss(
    "the loss is summed by sequences",
    lambda _: {"loss_agg_mode": "seq-mean-token-sum"},
    f"{ACTOR}loss_agg_mode=seq-mean-token-mean",
)
in_loss("tokens are counted in each micro-batch (5625)", uncounted)
in_loss("the loss' mask is its advantages (2506)", lambda x: {"response_mask": x["advantages"]})
in_loss("the ratio is not clipped", unclipped, f"{ACTOR}clip_ratio_high=0.01")
in_loss("the loss' mask is off by one", lambda x: {"response_mask": x["response_mask"].roll(1, 1)})
in_loss(
    "the loss counts padding",
    lambda x: {"response_mask": torch.ones_like(x["response_mask"])},
    f"{ACTOR}loss_agg_mode=seq-mean-token-mean",
)
in_loss("the loss' advantages have the other sign", lambda x: {"advantages": -x["advantages"]})
in_loss("the policy is its own old policy", lambda x: {"old_log_prob": x["log_prob"].detach()})
in_loss("importance weights are not used", lambda _: {"rollout_is_weights": None}, *CORRECTED)
within("the KL counts twice", "kl_penalty", lambda inner: lambda **x: 2 * inner(**x), WITH_KL)
within("the KL has the other sign", "kl_penalty", lambda inner: lambda **x: -inner(**x), WITH_KL)
within(
    "the KL is of another estimate",
    "kl_penalty",
    lambda inner: lambda **x: inner(**x | {"kl_penalty": "k2"}),
    WITH_KL,
)
within(
    "the entropy has the other sign",
    "agg_loss",
    lambda inner: lambda **x: -inner(**x),
    NO_KL,
    f"{ACTOR}entropy_coeff=0.1",
)
after(
    "the loss is divided by micro-batches once more",
    "loss",
    ENGINE,
    "forward_step",
    lambda found, given: (found[0] / 2, found[1]) if found[0].requires_grad else None,
)


def on_the_way(name: str, key: str, make: Callable[[Tensor], Tensor]) -> None:
    """Plant a change of what a worker reads of a micro-batch."""

    def made(inner: Any) -> Any:
        def step(self: Any, micro_batch: Any, **named: Any) -> Any:
            if key in micro_batch:
                micro_batch[key] = make(micro_batch[key])
            return inner(self, micro_batch, **named)

        return step

    FAULTS[name] = "micro-batches", lambda stack: instead(stack, ENGINE, "forward_step", made), []


on_the_way("a worker reads negated advantages", "advantages", torch.neg)
on_the_way(
    "a worker reads old log-probabilities of other rows", "old_log_probs", lambda x: x.roll(1, 0)
)
on_the_way("a worker reads a mask that is off by one", "response_mask", lambda x: x.roll(1, 1))

# --- what a worker's optimizer makes of it, and what becomes of the weights


def around(name: str, segment: str, what: str, *, begin: Any = None, end: Any = None) -> None:
    """Plant what is done before and after a method of the engine."""

    def made(inner: Any) -> Any:
        def called(self: Any, *given: Any, **named: Any) -> Any:
            held = None if begin is None else begin(self)
            found = inner(self, *given, **named)
            if end is not None:
                end(self, held)
            return found

        return called

    FAULTS[name] = segment, lambda stack: instead(stack, ENGINE, what, made), []


def options(**changed: Any) -> dict[str, Any]:
    """Return a change of the optimizer's options during its step: of each by a function."""

    def begin(engine: Any) -> dict[str, Any]:
        [group] = engine.optimizer.param_groups
        held = {name: group[name] for name in changed}
        group.update({name: change(held[name]) for name, change in changed.items()})
        return held

    return {
        "begin": begin,
        "end": lambda engine, held: engine.optimizer.param_groups[0].update(held),
    }


def times(by: float, where: str = "") -> Callable[[Any, Any], None]:
    """Return a change of the gradients of parameters with this in their name."""

    def change(engine: Any, _: Any = None) -> None:
        for name, parameter in engine.module.named_parameters():
            if where in name and parameter.grad is not None:
                parameter.grad.mul_(by)

    return change


def moved(engine: Any) -> None:
    with torch.no_grad():
        for parameter in engine.module.parameters():
            parameter.mul_(1.001)


def forgotten(engine: Any, _: Any = None) -> None:
    engine.optimizer.state.clear()


BACKWARD, STEP = "forward_backward_batch", "optimizer_step"


def of_training(change: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return a change that is made after a backward pass only."""

    def end(engine: Any, _: Any) -> None:
        if any(parameter.grad is not None for parameter in engine.module.parameters()):
            change(engine, None)

    return end


around("the gradient counts twice", "gradient", BACKWARD, end=of_training(times(2.0)))
around(
    "the gradient of a layer is lost", "gradient", BACKWARD, end=of_training(times(0.0, "layers.1"))
)


def clipped_at(name: str, by: float) -> None:
    def made(inner: Any) -> Any:
        return lambda given, max_norm: inner(given, max_norm * by)

    clip = "fsdp2_clip_grad_norm_"
    FAULTS[name] = "clip", lambda stack: instead(stack, transformer_impl, clip, made), []


clipped_at("the gradient is clipped at a tenth of the limit", 0.1)
clipped_at("the gradient is clipped at ten times the limit", 10.0)
clipped_at("the gradient's norm is that of one of two workers (3655)", 2**0.5)
around("the learning rate is doubled", "optimizer step", STEP, **options(lr=lambda x: 2 * x))
around("the weight decay is lost", "optimizer step", STEP, **options(weight_decay=lambda _: 0.0))
around("Adam's betas are others", "optimizer step", STEP, **options(betas=lambda _: (0.8, 0.9)))
around("the optimizer forgets its state", "optimizer step", "optimizer_zero_grad", end=forgotten)
after(
    "weights change between two steps",
    "weights between steps",
    TRAINER,
    "_update_actor",
    lambda *_: moved(verl_driver.MADE[0].actor.engine),
)
FAULTS["the sampler never gets the trained weights"] = "sampler", lambda _: None, ["+stale=True"]
