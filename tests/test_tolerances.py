"""What rounding may do: healthy numbers use at most half of their tolerance, and a little more deviates."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.optimization import Adafactor

from rlvr_debug.recorders.keeping import groups_of, kind_of, state_of, whole_norms
from rlvr_debug.recorders.trl.settings import precision_of
from rlvr_debug.replay.finding import Finding, NotSeen
from rlvr_debug.replay.judge import Instance, in_bfloat16, judge
from rlvr_debug.replay.record import Batch, Generation, Record, RewardCall, Update
from rlvr_debug.replay.segments import advantages, loss, rewards
from rlvr_debug.replay.segments.gradient import clips, norm, norm_as_summed
from rlvr_debug.replay.segments.weights import optimizer_steps, weights_gap
from rlvr_debug.replay.settings import Sampling, Settings
from rlvr_debug.replay.store import read_record, write_record
from tests.small_record import small_record

DTYPES = ("float32", "bfloat16")
SHAPE = (40, 50)


def share(instance: Instance) -> float:
    gap = instance.compare()
    assert gap is not None
    return gap.share


def made_up(settings: Settings, **told: Any) -> Record:
    return Record("made up", settings, None, None, lambda: None, **told)


def step_share(record: Record) -> float:
    """Return the share of its tolerance that the record's one step of its optimizer uses."""
    (instance,) = optimizer_steps(record, None)  # type: ignore[arg-type]
    return share(instance)


def step_found(record: Record) -> Finding:
    return judge("optimizer step", optimizer_steps(record, None))  # type: ignore[arg-type]


def normal(seed: int, *shape: int, size: float = 1.0) -> Tensor:
    return size * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stepped(name: str, dtype: str, rate: float, size: float, **told: Any) -> Record:
    """Return the record of the third step of an optimizer of torch's, or of transformers'."""
    kind = Adafactor if name == "transformers.Adafactor" else getattr(torch.optim, name)
    parameter = torch.nn.Parameter(normal(0, *SHAPE, size=0.05).to(getattr(torch, dtype)))
    optimizer = kind([parameter], lr=None if told.get("relative_step") else rate, **told)
    how = Settings(2, Sampling(), 8, learning_rate=rate, schedule="constant", precision=dtype)
    record = made_up(how, trainable=("w",))
    names = {id(parameter): "w"}
    for step in range(3):
        parameter.grad = normal(1 + step, *SHAPE, size=size).to(parameter.dtype)
        record.weights = [{"w": parameter.detach().clone()}]
        state = state_of(optimizer, names, record)
        optimizer.step()
    assert parameter.grad is not None
    record.weights.append({"w": parameter.detach().clone()})
    record.updates = [
        Update(
            clipped={"w": parameter.grad},
            after=1,
            optimizer=kind_of(kind),
            groups=groups_of(optimizer.param_groups, names, {}),
            state=state,
        )
    ]
    return record


OPTIMIZERS: list[tuple[str, Mapping[str, float]]] = [
    ("AdamW", {"weight_decay": 0.01}),
    ("AdamW", {"weight_decay": 0.0}),
    ("Adam", {"weight_decay": 0.01}),
    ("SGD", {"momentum": 0.9}),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "told"), OPTIMIZERS)
@given(st.sampled_from([1e-6, 1e-5, 1e-3, 1e-1]), st.sampled_from([1e-9, 1e-6, 1e-3, 1.0]))
@settings(max_examples=16)
def test_torch_s_own_step_uses_at_most_half_of_its_tolerance(
    dtype: str, name: str, told: Mapping[str, float], rate: float, size: float
) -> None:
    assert step_share(stepped(name, dtype, rate, size, **told)) < 0.5


@pytest.mark.parametrize(("name", "told"), OPTIMIZERS)
def test_a_step_that_is_one_in_a_thousand_too_long_deviates(
    name: str, told: Mapping[str, float]
) -> None:
    record = stepped(name, "float32", 1e-3, 1e-2, **told)
    before, after = (each["w"] for each in record.weights)
    record.weights[1] = {"w": before + 1.001 * (after - before)}
    assert step_share(record) > 1


OPTIONS: list[tuple[str, Mapping[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.8, "nesterov": True}),
    ("SGD", {"momentum": 0.8, "dampening": 0.5, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.8, "maximize": True, "foreach": True}),
    ("SGD", {"momentum": 0.8, "fused": True}),
    ("AdamW", {"amsgrad": True, "betas": (0.5, 0.7), "eps": 1e-4}),
    ("AdamW", {"maximize": True}),
    ("AdamW", {"foreach": True}),
    ("AdamW", {"fused": True}),
    ("Adam", {"amsgrad": True, "fused": True, "weight_decay": 0.1}),
    ("RMSprop", {"centered": True, "momentum": 0.5, "alpha": 0.9}),
    ("Adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.1}),
    ("NAdam", {"momentum_decay": 0.01, "decoupled_weight_decay": True, "weight_decay": 0.1}),
    *((name, {}) for name in ("RAdam", "Adamax", "Adadelta", "ASGD", "Rprop", "Adafactor", "Muon")),
    ("transformers.Adafactor", {"relative_step": False, "scale_parameter": False}),
    ("transformers.Adafactor", {"relative_step": True, "warmup_init": True, "beta1": 0.9}),
]


@pytest.mark.parametrize(("name", "told"), OPTIONS)
def test_every_option_of_an_optimizer_is_held_to_its_own_class(
    name: str, told: Mapping[str, Any], tmp_path: Path
) -> None:
    if not hasattr(torch.optim, name.removeprefix("transformers.")):
        pytest.skip(f"this torch has no {name}")
    record = stepped(name, "float32", 1e-2, 1e-2, **told)
    assert step_share(record) < 0.5
    write_record(record, tmp_path / "record")
    assert step_share(read_record(tmp_path / "record")) == step_share(record)
    before, after = (each["w"] for each in record.weights)
    record.weights[1] = {"w": before - (after - before)}
    found = step_found(record)
    assert "sign reversed" in [name.name for name in found.names]
    assert found.share > 1


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("bitsandbytes.AdamW8bit", "no reference code for"),
        ("__main__.AdamW", "no reference code for"),
        ("LBFGS", "no reference code for"),
        ("NAdam", "the step cannot be recomputed"),
    ],
)
def test_an_optimizer_without_a_reference_is_not_seen(kind: str, said: str) -> None:
    record = stepped("AdamW", "float32", 1e-3, 1e-2)
    record.updates[0].optimizer = kind
    with pytest.raises(NotSeen, match=said):
        step_share(record)


def test_an_option_that_was_not_asked_for_deviates() -> None:
    record = stepped("SGD", "float32", 1e-2, 1e-2, momentum=0.8, nesterov=True)
    [group] = record.updates[0].groups
    record.updates[0].groups = [replace(group, options={**group.options, "nesterov": False})]
    assert step_share(record) > 1


def clip_share(update: Update, limit: float, dtype: str = "float32", **told: Any) -> float:
    how = Settings(2, Sampling(), 8, max_grad_norm=limit, precision=dtype)
    (instance,) = clips(made_up(how, updates=[update], **told), None)  # type: ignore[arg-type]
    return share(instance)


def clipped(gradients: dict[str, Tensor], limit: float) -> Update:
    """Return an update whose gradients torch has clipped."""
    parameters = [torch.nn.Parameter(torch.zeros_like(each)) for each in gradients.values()]
    for parameter, gradient in zip(parameters, gradients.values(), strict=True):
        parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_(parameters, limit)
    after = [each.grad for each in parameters if each.grad is not None]
    return Update(gradients=gradients, clipped=dict(zip(gradients, after, strict=True)))


def small_gradients(dtype: str, seed: int) -> dict[str, Tensor]:
    shapes = ((300, 20), (50,), (7, 9))
    found = (normal(seed + number, *shape) for number, shape in enumerate(shapes))
    return {str(number): each.to(getattr(torch, dtype)) for number, each in enumerate(found)}


@pytest.mark.parametrize("dtype", DTYPES)
@given(st.integers(0, 1000), st.sampled_from([0.1, 1.0, 33.3, 1e6]))
@settings(max_examples=20)
def test_torch_s_own_clip_uses_at_most_half_of_its_tolerance(
    dtype: str, seed: int, limit: float
) -> None:
    assert clip_share(clipped(small_gradients(dtype, seed), limit), limit, dtype) < 0.5


@pytest.mark.parametrize(("dtype", "off"), [("float32", 1e-4), ("bfloat16", 0.1)])
def test_a_clip_that_is_a_little_off_deviates(dtype: str, off: float) -> None:
    update = clipped(small_gradients(dtype, 0), 1.0)
    more = {name: (1 + off) * each for name, each in (update.clipped or {}).items()}
    assert clip_share(replace(update, clipped=more), 1.0, dtype) > 1


def batch_with(mask: Tensor, **told: Any) -> Batch:
    """Return a batch of completions under this mask, and of nothing but what is told."""
    nothing = torch.zeros(len(mask), 0)
    ids = torch.zeros(mask.shape).long()
    return Batch(*(nothing, nothing, ids, mask, mask, torch.zeros(len(mask))), **told)


def corrected(level: str, seed: int, off: float = 0.0, apart: float = 0.0) -> Instance:
    """Return the correction of a batch as float32 computes it. apart: nats a token between sampler and trainer."""
    old = -normal(seed, 4, 60).abs()
    sampler = old + normal(seed + 1, 4, 60, size=0.01) + apart
    mask = torch.arange(60) < torch.tensor([[60], [40], [7], [1]])
    gap = (old - sampler) * mask
    gap = gap.sum(1, keepdim=True) if level == "sequence" else gap
    weights = gap.exp().clamp(max=2.0) * (1 + off)
    batch = batch_with(mask, old=old, sampler=sampler, importance_weights=weights)
    told = Settings(2, Sampling(), 8, importance_correction=f"{level}_truncate", correction_max=2.0)

    def compare(**knobs: Any) -> Any:
        return advantages.compare_weights(batch, told, **knobs)

    return Instance("here", compare)


@pytest.mark.parametrize("level", ["token", "sequence"])
@given(st.integers(0, 1000))
@settings(max_examples=20)
def test_a_correction_in_float32_uses_at_most_half_of_its_tolerance(level: str, seed: int) -> None:
    assert share(corrected(level, seed)) < 0.5


def test_a_correction_too_small_for_float32_agrees() -> None:
    """It is of 60 tokens, as of an engine that kept old weights: exp(-120) is 0."""
    assert share(corrected("sequence", 0, apart=2.0)) < 0.5


def test_a_wrong_correction_of_sequences_is_held_to_those_of_tokens_too() -> None:
    found = judge("importance weights", [corrected("sequence", 0, 1e-2)])
    assert (found.status, found.names) == ("deviates", ())


@pytest.mark.parametrize(("level", "off"), [("token", 1e-4), ("sequence", 1e-2)])
def test_a_correction_that_is_a_little_off_deviates(level: str, off: float) -> None:
    assert share(corrected(level, 0, off)) > 1


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("held", DTYPES)
def test_merged_and_stored_weights_use_at_most_half_of_their_tolerance(
    held: str, stored: str
) -> None:
    """The adapter is added in as peft adds it, in another order than the record's reference."""
    base, up, down = (
        normal(n, *shape, size=0.05).to(getattr(torch, held))
        for n, shape in enumerate([(64, 48), (64, 4), (4, 48)])
    )
    exact = {"w": base.double() + 2.0 * up.double() @ down.double()}
    own = {"w": base + 2.0 * up @ down}
    saved = (base + (up @ down) * 2.0).to(getattr(torch, stored))
    assert weights_gap({"w": saved}, own, exact).share < 0.5
    without = base.to(getattr(torch, stored))
    assert weights_gap({"w": without}, own, exact).share > 1


def test_what_is_saved_as_it_is_held_is_held_to_the_bit_or_nearly_so() -> None:
    held = {"w": normal(0, 100)}
    assert weights_gap(held, held, held).share == 0
    assert weights_gap({"w": held["w"] * (1 + 1e-5)}, held, held).share > 1


def test_what_is_halfway_between_two_numbers_of_bfloat16_may_be_stored_as_either() -> None:
    exact = torch.tensor([1.0 + 2**-8, 1.001], dtype=torch.float64)  # the first one is halfway
    right, other = in_bfloat16(exact, torch.full((2,), 1e-6).double())
    assert {float(right[0]), float(other[0])} == {1.0, 1.0 + 2**-7}
    assert float(right[1]) == float(other[1]) == 1.0


def test_terms_of_the_loss_that_cancel_are_each_rounded() -> None:
    """A likely token's log-probability is too small to shake anything, and what is left of two terms is their rounding."""
    record = small_record()
    update = record.updates[0]
    for micro in update.micro_batches:
        likely = torch.full(micro.given.loss_mask.shape, -1e-7)
        far = torch.full_like(likely, -1.3)
        kl = record.settings.kl_beta * (1 - (far - likely).exp())
        micro.given = replace(micro.given, old=likely, reference=far, advantages=kl)
        micro.logprobs, micro.entropies = likely, None
    wanted, tolerance = loss._with_tolerance(record, update, {})
    record.settings = replace(record.settings, kl_beta=0.0)
    alone, _ = loss._with_tolerance(record, update, {})
    assert float(wanted.abs().max()) < 1e-6 * float(alone.abs().max())
    assert bool((tolerance >= 29 * torch.finfo(torch.float32).eps * alone.abs()).all())


def kl_in_bfloat16(size: float, times: float) -> float:
    """Return the share of a trainer's own KL, in bfloat16, of likely tokens whose reference is so far off."""
    record = small_record()
    record.settings = replace(record.settings, loss_type="bnpo", precision="bfloat16")
    update, seen = record.updates[0], []
    for seed, micro in enumerate(update.micro_batches):
        mask = micro.given.loss_mask
        likely = -normal(seed, *mask.shape, size=0.01).abs().bfloat16()
        near = (likely - normal(9 + seed, *mask.shape, size=size).abs()).bfloat16()
        nothing = torch.zeros(len(mask))
        micro.given = replace(micro.given, old=likely, reference=near, advantages=nothing)
        micro.logprobs, micro.entropies = likely, None
        leaf = likely.clone().requires_grad_()
        kl = torch.exp(near - leaf) - (near - leaf) - 1
        whole = (record.settings.kl_beta * kl * mask).sum() / mask.sum() / 2
        seen.append(torch.autograd.grad(whole, leaf)[0].double().flatten())
    gap = loss.compare_loss(record, update, times * torch.cat(seen))
    assert gap is not None
    return gap.share


def test_a_small_kl_in_bfloat16_is_rounded_as_a_trainer_rounds_it_and_its_double_deviates() -> None:
    assert kl_in_bfloat16(0.01, 1.0) < 1
    assert kl_in_bfloat16(0.5, 1.0) < 1 < kl_in_bfloat16(0.5, 2.0)


def test_adapters_in_float32_are_computed_as_coarsely_as_bfloat16_weights_that_they_adapt() -> None:
    frozen, adapter = torch.nn.Linear(2, 2).bfloat16().requires_grad_(False), torch.nn.Linear(2, 2)
    args = SimpleNamespace(bf16=False)
    assert precision_of(args, torch.nn.ModuleList([frozen, adapter])) == "bfloat16"
    assert precision_of(args, torch.nn.ModuleList([adapter])) == "float32"


@pytest.mark.parametrize(("off", "used"), [(0.0, True), (1e-4, False)])
@given(st.integers(0, 1000))
@settings(max_examples=10)
def test_a_reward_less_its_kl_is_told_from_another_one_and_not_from_its_rounding(
    off: float, used: bool, seed: int
) -> None:
    old = -normal(seed, 4, 60).abs()
    reference = old + normal(seed + 1, 4, 60, size=0.1)
    mask = torch.ones(4, 60).bool()
    returned = normal(seed + 2, 4)
    taken = 0.04 * (((reference - old).exp() - (reference - old) - 1) * mask).sum(1)
    batch = batch_with(mask, old=old, reference=reference)
    call = RewardCall("reward", 0, {}, returned.tolist())
    told = Settings(2, Sampling(), 8, kl_beta=0.04, kl_estimator="k3", kl_place="reward")
    generation = Generation(rewards=(returned - taken + off)[:, None], batch=batch)
    assert rewards._used(made_up(told), generation, call) is used


# --- a norm that float32 sums up otherwise

NORM_LIMIT = 0.1


@pytest.fixture(scope="module")
def summed_otherwise() -> Update:
    """Return an update whose gradient torch has clipped: one tensor of 8 M numbers, as small models have none."""
    return clipped({"w": normal(0, 8_000_000, size=1e-3)}, NORM_LIMIT)


def test_a_norm_that_float32_sums_up_otherwise_is_no_deviation(summed_otherwise: Update) -> None:
    assert summed_otherwise.gradients is not None
    off = norm_as_summed(summed_otherwise.gradients) / norm(summed_otherwise.gradients) - 1
    assert abs(off) > 1e-4  # or there is nothing to be tested
    assert clip_share(summed_otherwise, NORM_LIMIT) < 1
    less = {name: tensor * 0.99 for name, tensor in (summed_otherwise.clipped or {}).items()}
    assert clip_share(replace(summed_otherwise, clipped=less), NORM_LIMIT) > 1


def test_of_a_part_of_a_gradient_the_whole_norm_is_read(summed_otherwise: Update) -> None:
    assert summed_otherwise.gradients is not None
    assert summed_otherwise.clipped is not None
    held = SimpleNamespace(grad=summed_otherwise.gradients["w"])
    before, summed = whole_norms(SimpleNamespace(named_parameters=lambda: [("w", held)]))
    after = norm(summed_otherwise.clipped)
    some = {"w": torch.arange(0, 8_000_000, 1000)}
    gradients, part = ({"w": held.grad[some["w"]]}, summed_otherwise.clipped["w"][some["w"]])
    update = Update(gradients=gradients, clipped={"w": part}, norms=(before, after, summed))
    assert clip_share(update, NORM_LIMIT, elements=some) < 1
    without = replace(update, norms=(before, after))
    assert clip_share(without, NORM_LIMIT, elements=some) > 1
    with pytest.raises(NotSeen, match="global gradient norm was not recorded"):
        clip_share(replace(update, norms=None), NORM_LIMIT, elements=some)


def test_a_name_that_fits_one_update_of_several_says_the_size_of_each() -> None:
    record = small_record()
    for micro in record.updates[1].micro_batches:
        assert micro.grad_logprobs is not None
        micro.grad_logprobs = micro.grad_logprobs / 2
    found = judge("loss", loss.losses(record, None))
    assert "divided by the number of micro-batches twice" in {each.name for each in found.names}
    said = "times what it should be: 1 in update 1, 0.5 in update 2, 1 in update 3"
    assert found.note.startswith(f"first in update 2; {said}")


@pytest.mark.parametrize(
    ("size", "group", "deviates"), [(1.0, "w", True), (0.0, "w", False), (1.0, "late", False)]
)
def test_a_weight_that_is_unfrozen_later_and_in_no_group_of_the_optimizer_is_told(
    size: float, group: str, deviates: bool
) -> None:
    record = stepped("AdamW", "float32", 1e-3, 1e-2)
    record.weights = [{**weights, "late": torch.ones(3)} for weights in record.weights]
    [update] = record.updates
    assert update.clipped is not None
    update.clipped["late"] = normal(5, 3, size=size)
    if group == "late":
        update.groups[0] = replace(update.groups[0], names=("w", "late"))
    found = step_found(record)
    assert (found.share > 1) == deviates
    missing = "some weights are not in the optimizer"
    assert (missing in [each.name for each in found.names]) == deviates
