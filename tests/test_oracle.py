"""TRL 1.16.0 as the oracle: the loss, its gradient, advantages, masks and weights are TRL's.

In float32 TRL runs as it is. Its output layer computes in float32 whatever the model's type, so in
float64 TRL's loss is given log-probabilities from the textbook, and the model is made float64
throughout (transformers computes norms and positions in float32).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rlvr_debug.checkout import ROOT
from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.grpo.loss import Batch, Experience, without_truncated
from rlvr_debug.grpo.objective import (
    Totals,
    advantages,
    importance_weights,
    normalize_then_sum,
)
from rlvr_debug.grpo.policy import Policy, build_policy
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.trainer import accumulate, batch_logprobs
from rlvr_debug.metrics.logprobs import clip_metrics, kl_metrics, sampler_metrics
from rlvr_debug.metrics.rollouts import group_metrics, part_metrics
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout
from rlvr_debug.study.params import load_params
from tests.small import AGGREGATIONS, LEVELS, ROWS, SCALINGS

trl = pytest.importorskip("trl", reason="trl is not installed: no oracle for the trainer")
datasets = pytest.importorskip("datasets", reason="datasets comes with trl")

TEMPERATURE = 0.7
SETTINGS = replace(load_params(ROOT / "params.yaml").training, temperature=TEMPERATURE)
TOLERANCE = {"float32": 1e-5, "float64": 1e-9}

PROMPTS = (2, 5, 3, 7, 1, 4)
COMPLETIONS = (4, 11, 1, 6, 9, 3)
# of the completion: what the tools wrote. The first two have a turn of the model on either side, the
# third is one token, and of the fifth nothing is trained on
TOOL_TOKENS = ((1,), (3, 4, 5, 8), (), (0, 1), tuple(range(9)), ())


# --- one ragged batch in both layouts


def trl_inputs(vocabulary: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """As TRL lays it out: prompts padded on the left, completions on the right."""
    generator = torch.Generator().manual_seed(0)
    count, prompt, completion = len(PROMPTS), max(PROMPTS), max(COMPLETIONS)
    tool_mask = torch.ones(count, completion, dtype=torch.long)
    for row, where in enumerate(TOOL_TOKENS):
        tool_mask[row, list(where)] = 0
    completion_mask = torch.arange(completion) < torch.tensor(COMPLETIONS)[:, None]
    return {
        "prompt_ids": torch.randint(vocabulary, (count, prompt), generator=generator),
        "prompt_mask": (torch.arange(prompt) >= prompt - torch.tensor(PROMPTS)[:, None]).long(),
        "completion_ids": torch.randint(vocabulary, (count, completion), generator=generator),
        "completion_mask": completion_mask.long(),
        "tool_mask": tool_mask,
        "advantages": torch.tensor([1.3, -0.7, 0.9, 2.1, -0.4, 0.6], dtype=dtype),
        "num_items_in_batch": (tool_mask * completion_mask).sum(),
    }


def our_batch(inputs: dict[str, Tensor]) -> Batch:
    """The same sequences with no padding but on the right."""
    joined = {
        name: torch.cat([inputs[f"prompt_{name}"], inputs[f"completion_{name}"]], 1)
        for name in ("ids", "mask")
    }
    width = int(joined["mask"].sum(1).max())
    ids = torch.zeros(len(PROMPTS), width, dtype=torch.long)
    real, sampled = (torch.zeros(ids.shape, dtype=torch.bool) for _ in range(2))
    written = torch.cat([torch.zeros_like(inputs["prompt_ids"]), inputs["tool_mask"]], 1)
    for row, kept in enumerate(joined["mask"].bool()):
        length = int(kept.sum())
        ids[row, :length] = joined["ids"][row, kept]
        real[row, :length] = True
        sampled[row, :length] = written[row, kept].bool()
    return Batch(ids, sampled, torch.zeros(ids.shape), real, sampled, real)


def in_trl_s_layout(ours: Tensor) -> Tensor:
    theirs = torch.zeros(len(PROMPTS), max(COMPLETIONS), dtype=ours.dtype)
    for row, (before, length) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        theirs[row, :length] = ours[row, before : before + length]
    return theirs


# --- TRL's trainer, and a model in float64


@pytest.fixture(scope="module")
def trainer(chat: Chat, random_model: Callable[..., Any], tmp_path_factory: Any) -> Any:
    """Built once; each test sets what it is about."""
    path: Path = tmp_path_factory.mktemp("oracle")
    random_model(5, vocab_size=len(chat.tokenizer)).save_pretrained(path)
    built = trl.GRPOTrainer(
        model=str(path),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=trl.GRPOConfig(
            output_dir=str(path / "out"),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            per_device_train_batch_size=len(PROMPTS),
            num_generations=len(PROMPTS),
            max_completion_length=max(COMPLETIONS),
            temperature=TEMPERATURE,
            beta=0.0,
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": "a"}] * len(PROMPTS)),
        processing_class=chat.tokenizer,
    )
    built.model.train()
    return built


class Rotary(nn.Module):
    """Qwen2's position embedding, in the precision of what it is given."""

    def __init__(self, frequencies: Tensor) -> None:
        super().__init__()
        self.frequencies = frequencies

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None].to(x.dtype) * self.frequencies.to(x.dtype)
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()


def in_float64(model: Any) -> Any:
    model = model.double()
    model.model.rotary_emb = Rotary(model.model.rotary_emb.inv_freq)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child).__name__ == "Qwen2RMSNorm":
                norm = nn.RMSNorm(len(child.weight), child.variance_epsilon, dtype=torch.float64)
                norm.weight = child.weight
                setattr(parent, name, norm)
    return model


def textbook(model: Any, ids: Tensor, mask: Tensor, keep: int, **_: Any) -> tuple[Any, Any, None]:
    """What TRL's _get_per_token_logps_and_entropies is defined to return, in the model's precision."""
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits / TEMPERATURE
    logprobs = logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    return logprobs[:, -keep:], torch.zeros(len(ids), keep), None


@pytest.fixture(scope="module", params=["float32", "float64"])
def policy(
    request: Any, trainer: Any, chat: Chat, random_model: Callable[..., Any]
) -> Iterator[Policy]:
    model = trainer.model
    if request.param == "float64":
        model = in_float64(random_model(5, vocab_size=len(chat.tokenizer)))
        trainer._get_per_token_logps_and_entropies = textbook
    yield Policy(model, None, None)
    vars(trainer).pop("_get_per_token_logps_and_entropies", None)


def gradient_of(parameters: list[Tensor]) -> Tensor:
    """What has been accumulated, taken away."""
    found = []
    for parameter in parameters:
        assert parameter.grad is not None
        found.append(parameter.grad.flatten())
        parameter.grad = None
    return torch.cat(found)


def trl_loss(
    trainer: Any, model: Any, inputs: dict[str, Tensor], settings: TrainingSettings
) -> float:
    """TRL's loss, its gradient accumulated as TRL does."""
    parts = settings.gradient_accumulation_steps
    trainer.beta, trainer.loss_type = settings.kl_beta, settings.aggregation
    trainer.epsilon_low, trainer.epsilon_high = settings.clip, settings.epsilon_high
    trainer.args.delta = settings.delta or None
    trainer.args.use_bias_correction_kl = settings.use_bias_correction_kl
    trainer.importance_sampling_level = settings.importance_sampling_level
    trainer.use_vllm = bool(settings.importance_sampling_cap)
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = parts
    loss = 0.0
    for rows in torch.arange(len(PROMPTS)).tensor_split(parts):
        part = {name: value[rows] if value.dim() else value for name, value in inputs.items()}
        share = trainer._compute_loss(model, part)
        share.backward()
        loss += float(share.detach())
    trainer.use_vllm = False
    return loss


def experience_of(
    batch: Batch,
    advantages: Tensor,
    settings: TrainingSettings,
    reference: Tensor | None,
    old: Tensor | None = None,
) -> Experience:
    totals = Totals(
        len(PROMPTS),
        int(batch.loss.sum()),
        settings.gradient_accumulation_steps,
        max(COMPLETIONS),
    )
    return Experience(
        **vars(batch), advantages=advantages, reference=reference, old=old, totals=totals
    )


def assert_equal(
    trainer: Any,
    model: Any,
    policy: Policy,
    inputs: dict[str, Tensor],
    experience: Experience,
    settings: TrainingSettings,
) -> None:
    expected = trl_loss(trainer, model, inputs, settings)
    theirs = gradient_of(policy.trained)
    loss, _ = accumulate(policy.model, experience, settings, Stages())
    ours = gradient_of(policy.trained)
    tolerance = TOLERANCE[settings.logprobs_dtype]
    assert float(theirs.norm()) > 1e-3
    assert loss == pytest.approx(expected, rel=tolerance)
    assert float((ours - theirs).norm()) <= tolerance * float(theirs.norm())


# --- the loss and its gradient

CLIPS = ((0.2, 0.2, 0.0), (0.1, 0.3, 0.0), (0.2, 0.28, 1.3))  # clip, epsilon_high, delta
KLS = ((0.0, False), (0.04, False), (0.04, True))  # kl_beta, use_bias_correction_kl
# importance_sampling_cap, and whether it is the batch's first update; with vLLM, TRL has old
# log-probabilities from the start
UPDATES = ((0.0, True), (0.0, False), (1.2, False))
CUTS = (1, 3, 6)  # into six, a micro-batch is one sequence, and one has no token to train on


def every_pair(shift: int) -> list[tuple[Any, ...]]:
    """Nine choices of one of each of the four above: any two values of any two of them meet in one.

    shift: another third of all choices.
    """
    return [
        (KLS[i], CLIPS[j], UPDATES[(i + j + shift) % 3], CUTS[(i + 2 * j) % 3])
        for i, j in product(range(3), repeat=2)
    ]


@pytest.mark.parametrize("choices", ["pairs", pytest.param("all", marks=pytest.mark.heavy)])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_loss_and_its_whole_gradient_are_trl_s(
    trainer: Any, policy: Policy, aggregation: Any, level: Any, choices: str
) -> None:
    dtype = policy.model.dtype
    dtype_name: Any = str(dtype).removeprefix("torch.")
    settings = replace(SETTINGS, logprobs_dtype=dtype_name)
    inputs = trl_inputs(policy.model.config.vocab_size, dtype)
    batch = our_batch(inputs)
    with torch.no_grad():
        values = batch_logprobs(policy.model, batch, settings, Stages())
    # far enough from the policy for clipping and the cap to act on both sides
    generator = torch.Generator().manual_seed(1)
    old, reference, sampler = (
        values + 0.3 * torch.randn(values.shape, generator=generator, dtype=dtype) for _ in range(3)
    )
    inputs["ref_per_token_logps"] = in_trl_s_layout(reference)
    assert ((values - old).exp() > 1.3)[batch.loss].any()
    shift = AGGREGATIONS.index(aggregation) + LEVELS.index(level)
    every = every_pair(shift) if choices == "pairs" else product(KLS, CLIPS, UPDATES, CUTS)
    for (beta, correct), (low, high, delta), (cap, first), parts in every:
        changed = replace(
            settings,
            aggregation=aggregation,
            importance_sampling_level=level,
            importance_sampling_cap=cap,
            kl_beta=beta,
            use_bias_correction_kl=correct,
            clip=low,
            epsilon_high=high,
            delta=delta,
            gradient_accumulation_steps=parts,
        )
        theirs = dict(inputs)
        if not first:
            theirs["old_per_token_logps"] = in_trl_s_layout(old)
        if cap:
            weights = (old - sampler).exp().clamp(max=cap)
            theirs["importance_sampling_ratio"] = in_trl_s_layout(weights)
        experience = experience_of(
            *(replace(batch, sampler=sampler), inputs["advantages"], changed),
            reference if beta else None,
            None if first else old,
        )
        assert_equal(trainer, policy.model, policy, theirs, experience, changed)


def test_the_loss_of_an_adapter_is_trl_s_and_so_is_its_reference(
    trainer: Any, chat: Chat, random_model: Callable[..., Any]
) -> None:
    pytest.importorskip("peft", reason="peft is not installed: no LoRA")
    settings = replace(SETTINGS, lora_r=4, kl_beta=0.04, gradient_accumulation_steps=3)
    model = random_model(5, vocab_size=len(chat.tokenizer))
    trl.trainer.utils.add_fused_lm_head(
        model, temperature=TEMPERATURE, outputs=("log_probs", "entropy")
    )
    policy = build_policy(model, None, settings, seed=0)
    with torch.no_grad():
        for parameter in policy.trained:  # an adapter starts at nothing
            parameter += 0.05
    inputs = trl_inputs(model.config.vocab_size, torch.float32)
    batch = our_batch(inputs)
    ids, mask = (
        torch.cat([inputs[f"prompt_{name}"], inputs[f"completion_{name}"]], 1)
        for name in ("ids", "mask")
    )
    with torch.no_grad(), trl.trainer.utils.use_adapter(policy.adapter, adapter_name=None):
        theirs, _, _ = trainer._get_per_token_logps_and_entropies(
            policy.adapter, ids, mask, max(COMPLETIONS)
        )
    with torch.no_grad(), policy.as_reference() as reference_model:
        reference = batch_logprobs(reference_model, batch, settings, Stages())
    with torch.no_grad():
        values = batch_logprobs(model, batch, settings, Stages())
    counted = in_trl_s_layout(batch.loss.float()).bool()
    assert torch.allclose(in_trl_s_layout(reference)[counted], theirs[counted], rtol=0, atol=1e-5)
    assert float((values - reference).abs().max()) > 0.1
    inputs["ref_per_token_logps"] = theirs
    experience = experience_of(batch, inputs["advantages"], settings, reference)
    assert_equal(trainer, policy.adapter, policy, inputs, experience, settings)


# --- what TRL makes of rollouts and rewards


def trl_scored(trainer: Any, rewards: Tensor, **sampled: Any) -> dict[str, Tensor]:
    """TRL's _generate_and_score_completions with these rewards [P, G, K] in place of its own.

    sampled: completion_ids, and logprobs that they were sampled with.
    """
    count = rewards.shape[0] * rewards.shape[1]
    completions = sampled.get("completion_ids", [[1]] * count)
    generated: tuple[Any, ...] = (
        [[1]] * count,
        completions,
        None,
        [""] * count,
        sampled.get("logprobs"),
        {},
        None,
        [],
    )
    trainer.beta, trainer.num_generations = 0.0, rewards.shape[1]
    trainer.reward_funcs = trainer.reward_func_names = [str(k) for k in range(rewards.shape[2])]
    trainer._generate = lambda prompts: generated
    trainer._calculate_rewards = lambda *_: rewards.flatten(0, 1)
    try:
        output: dict[str, Tensor] = trainer._generate_and_score_completions(
            [{"prompt": "a"}] * count
        )
    finally:
        del trainer._generate, trainer._calculate_rewards
    return output


reward = st.sampled_from([0.0, 0.1, 0.3, 1.0, 0.3000001]) | st.floats(0, 1)
shapes = st.tuples(st.integers(1, 4), st.integers(2, 6), st.integers(1, 3))


def filled(shape: tuple[int, int, int]) -> st.SearchStrategy[Tensor]:
    size = math.prod(shape)
    values = st.lists(reward, min_size=size, max_size=size)
    return values.map(lambda found: torch.tensor(found, dtype=torch.float64).view(shape))


@given(shapes.flatmap(filled), st.sampled_from([*SCALINGS, "normalize_then_sum"]))
def test_advantages_are_trl_s_own(trainer: Any, parts: Tensor, how: str) -> None:
    weights = torch.tensor([0.9, 1.0, 0.4])[: parts.shape[2]].double()
    trainer.reward_weights = weights
    trainer.scale_rewards = how if how in SCALINGS else "group"
    trainer.multi_objective_aggregation = how if how not in SCALINGS else "sum_then_normalize"
    expected = trl_scored(trainer, parts)["advantages"]
    if how == "normalize_then_sum":
        found = normalize_then_sum(parts, weights, 1e-4, advantages)
    else:
        found = advantages((parts * weights).sum(-1), how, 1e-4)
    # over an epsilon of 1e-4, twice, what float64 leaves of a difference of equal rewards
    assert torch.allclose(found.flatten(), expected, rtol=1e-9, atol=1e-7)


def test_truncated_completions_are_masked_as_trl_masks_them(trainer: Any, chat: Chat) -> None:
    completions = [[5, 6, chat.eos_id], [5, 6, 7], [chat.eos_id], [8]]
    trainer.mask_truncated_completions = True
    trainer.reward_weights = torch.ones(1)
    found = trl_scored(trainer, torch.zeros(1, 4, 1), completion_ids=completions)
    trainer.mask_truncated_completions = False
    lengths = torch.tensor([[len(ids)] for ids in completions])
    outcomes = ["answered" if ids[-1] == chat.eos_id else "token_limit" for ids in completions]
    ours = without_truncated(
        torch.arange(3) < lengths,
        [Rollout(ROWS[0], [], outcome=outcome) for outcome in outcomes],
    )
    assert torch.equal(ours.long(), found["completion_mask"].long())


# --- what TRL logs


def logged(trainer: Any) -> dict[str, float]:
    """The last value of each, taken away."""
    found = {name: values[-1] for name, values in trainer._metrics["train"].items() if values}
    trainer._metrics["train"].clear()
    return found


@settings(max_examples=40)
@given(shapes.flatmap(filled))
def test_what_is_recorded_of_rewards_is_what_trl_logs(trainer: Any, parts: Tensor) -> None:
    trainer.reward_weights = torch.ones(parts.shape[2], dtype=torch.float64)
    trainer.scale_rewards, trainer.multi_objective_aggregation = "group", "sum_then_normalize"
    trl_scored(trainer, parts)
    theirs = logged(trainer)
    rewards = parts.sum(-1)
    columns = {str(k): part.flatten().tolist() for k, part in enumerate(parts.unbind(-1))}
    ours = {
        **group_metrics(rewards, rewards >= 1),
        **part_metrics(columns, rewards.flatten().tolist()),
    }
    names = ["reward", "reward_std"]
    names += [f"rewards/{k}/{what}" for k in columns for what in ("mean", "std")]
    assert [ours[name] for name in names] == pytest.approx([theirs[name] for name in names])
    # TRL takes a standard deviation of up to 1e-8 for 0
    if not ((rewards.std(1) > 0) & (rewards.std(1) < 1e-7)).any():
        assert ours["frac_reward_zero_std"] == pytest.approx(theirs["frac_reward_zero_std"])


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_recorded_of_the_update_is_what_trl_logs(
    trainer: Any, chat: Chat, level: Any
) -> None:
    inputs = trl_inputs(len(chat.tokenizer), torch.float32)
    # TRL divides by the tokens of each sequence, and would have none in the fifth
    inputs["tool_mask"][4, :3] = 1
    batch = our_batch(inputs)
    settings = replace(
        SETTINGS, kl_beta=0.04, importance_sampling_level=level, clip=0.01, epsilon_high=0.02
    )
    with torch.no_grad():
        values = batch_logprobs(trainer.model, batch, settings, Stages())
    generator = torch.Generator().manual_seed(2)
    old, reference = (values + 0.3 * torch.randn(values.shape, generator=generator) for _ in "ab")
    theirs = dict(inputs)
    theirs["old_per_token_logps"] = in_trl_s_layout(old)
    theirs["ref_per_token_logps"] = in_trl_s_layout(reference)
    trainer._metrics["train"].clear()
    trl_loss(trainer, trainer.model, theirs, settings)
    expected = logged(trainer)
    trainer.model.zero_grad()
    sampled, gains = batch.sampled, inputs["advantages"]
    clip = (settings.clip, settings.epsilon_high)
    ours = {
        **clip_metrics([values], old, sampled, gains, clip, level),
        **kl_metrics(values[sampled], reference[sampled], "k3"),
    }
    names = ["kl", *(name for name in ours if name.startswith("clip_ratio/"))]
    assert len(names) == 6
    assert {n: ours[n] for n in names} == pytest.approx({n: expected[n] for n in names}, rel=1e-5)
    assert ours["clip_ratio/high_max"] > 0 < ours["clip_ratio/low_mean"]


@pytest.mark.parametrize("cap", [2.0, math.inf])
def test_importance_weights_and_what_is_recorded_of_the_sampler_are_trl_s(
    trainer: Any, cap: float
) -> None:
    completions, sampler = [[5, 6, 7], [5]], [[-9.0, -1.0, -40.0], [-0.5]]
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
    trainer.vllm_importance_sampling_mode = "token_truncate"
    trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max = None, cap
    trainer.reward_weights = torch.ones(1)
    trainer._metrics["train"].clear()
    found = trl_scored(trainer, torch.zeros(1, 2, 1), completion_ids=completions, logprobs=sampler)
    trainer.use_vllm = False
    sampled, expected = found["completion_mask"].bool(), logged(trainer)
    old, drawn = found["old_per_token_logps"], found["sampling_per_token_logps"]
    weights = importance_weights(old, drawn, sampled, cap)
    assert torch.allclose(weights, found["importance_sampling_ratio"], rtol=1e-6)
    assert (weights[sampled] < 2.0).any()
    if math.isinf(cap):  # as what is recorded is
        ours = sampler_metrics(old[sampled], drawn[sampled])
        names = [name for name in expected if name.startswith("sampling/")]
        assert len(names) == 5
        assert {n: ours[n] for n in names} == pytest.approx(
            {n: expected[n] for n in names}, rel=1e-5
        )
    else:
        assert cap in weights


@pytest.mark.parametrize("chunk", [1, 4, 16])
def test_log_probabilities_are_trl_s_however_they_are_chunked(trainer: Any, chunk: int) -> None:
    inputs = trl_inputs(trainer.model.config.vocab_size, torch.float32)
    batch = our_batch(inputs)
    ids, mask = (
        torch.cat([inputs[f"prompt_{name}"], inputs[f"completion_{name}"]], 1)
        for name in ("ids", "mask")
    )
    with torch.no_grad():
        theirs, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, mask, max(COMPLETIONS)
        )
        ours = token_logprobs(
            trainer.model, batch.ids, batch.real, batch.loss, TEMPERATURE, chunk=chunk
        )
    counted = in_trl_s_layout(batch.loss.float()).bool()
    assert torch.allclose(in_trl_s_layout(ours)[counted], theirs[counted], rtol=0, atol=1e-5)
