"""What each planted fault does, that it does nothing else, and that none comes uncalled."""

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr_debug.causes import stages_with, variant_names
from rlvr_debug.checkout import ROOT
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Environment
from rlvr_debug.environments.musique.rows import synthetic_musique
from rlvr_debug.grpo.loss import build_batch, policy_loss
from rlvr_debug.grpo.objective import Totals, advantages
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.models.base_model import load_weights, model_config
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.sampling.rollouts import Limits, Rollout, rollout
from rlvr_debug.study.arms import runs
from rlvr_debug.study.model import HEALTHY, Params
from tests.small import PARAMS, ROWS, SETTINGS, Train, held
from tests.study_file import changed


def planted(fault: str) -> Stages:
    return stages_with([fault])


@pytest.fixture(scope="module")
def start(talkative: Callable[[int], Any]) -> dict[str, Tensor]:
    """The weights before training."""
    return dict(talkative(0).state_dict())


@pytest.fixture(scope="module")
def rollouts(
    chat: Chat, talkative: Callable[[int], Any], environment: Environment
) -> list[Rollout]:
    """Four of each row, some with several turns and some cut."""
    model = talkative(0)
    sampler = InProcessSampler(model.config.to_dict(), model.state_dict(), chat.ends)
    four = [row for row in ROWS for _ in range(4)]
    return rollout(four, environment, chat, sampler, temperature=1.0, seed=0)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# --- all faults


@pytest.mark.parametrize("fault", ["per-micro-batch-denominator", "temperature-ignored"])
def test_a_fault_that_needs_other_settings_does_nothing_without(trained: Train, fault: str) -> None:
    assert same(trained(planted(fault)).weights, trained(Stages()).weights)


# --- none by accident


def study(fault: str, case: str = "mine") -> Params:
    return changed(PARAMS, case=case, cases={"mine": {"faults": [fault]}})


@pytest.mark.parametrize("fault", variant_names())
def test_a_fault_is_reached_by_its_name_only(fault: str) -> None:
    stages = {run.design: stages_with(run.faults) for run in runs(study(fault))}
    expected = {"case": fault, "random_reward": "random-reward"}
    assert stages["control"] == Stages()
    assert {design: stages[design] for design in expected} == {
        design: planted(name) for design, name in expected.items()
    }
    healthy = list(runs(study(fault, case=HEALTHY)))
    assert {run.faults for run in healthy if run.design != "random_reward"} == {()}


# --- what each does


def test_leave_one_out_residue_makes_advantages_that_cannot_be() -> None:
    wrong = planted("leave-one-out-residue").advantages
    apart = torch.tensor([[0.35] * 7 + [0.95]])
    bound = 7 / math.sqrt(8)
    assert float(advantages(apart, "group", 1e-4).max()) <= bound
    assert float(wrong(apart, "group", 1e-4).max()) > 1000 * bound
    # exact in binary, there is no residue; and without scaling, nothing to divide by
    assert float(wrong(torch.eye(8), "group", 1e-4).abs().max()) <= bound
    assert float(wrong(apart, "none", 1e-4).max()) == pytest.approx(0.6)


def test_eos_is_not_trained_and_the_rest_of_the_reply_is(
    chat: Chat, environment: Environment, rollouts: list[Rollout]
) -> None:
    batch = build_batch(rollouts, planted("eos-not-trained"), environment, chat)
    ends = batch.sampled & (batch.ids == chat.eos_id)
    assert ends.any()
    assert not batch.loss[ends].any()
    replies = [s for r in rollouts for s in r.segments if s.role == "assistant"]
    assert int(batch.loss.sum()) == sum(len(reply.ids) - 1 for reply in replies)
    assert not (batch.loss & ~batch.sampled).any()


def test_tool_tokens_are_trained_and_the_prompt_is_not(
    chat: Chat, environment: Environment, rollouts: list[Rollout]
) -> None:
    batch = build_batch(rollouts, planted("tool-tokens-trained"), environment, chat)
    for b, current in enumerate(rollouts):
        prompt, *after = current.segments
        assert not batch.loss[b, : len(prompt.ids)].any()
        assert int(batch.loss[b].sum()) == sum(len(segment.ids) for segment in after)
    assert int(batch.loss.sum()) > int(batch.sampled.sum())


def test_a_subtracted_kl_pulls_away_from_the_reference() -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs, reference = -torch.rand(2, 3, 5, generator=generator)
    mask = torch.ones(3, 5, dtype=torch.bool)
    experience = held(torch.zeros(3), mask, mask, logprobs, reference, None, Totals(3, 15, 1, 5))

    def gradient(stages: Stages) -> Tensor:
        leaf = logprobs.clone().requires_grad_()
        loss = policy_loss(leaf, experience, SETTINGS, stages)
        found: Tensor = torch.autograd.grad(loss, leaf)[0]
        return found

    assert gradient(Stages()).abs().min() > 0
    assert torch.equal(gradient(planted("kl-subtracted")), -gradient(Stages()))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_reversed_kl_has_policy_and_reference_the_wrong_way_round(estimator: str) -> None:
    logprobs, reference = torch.tensor([-0.5, -2.0]), torch.tensor([-1.5, -0.25])
    found = planted("kl-reversed").kl(logprobs, reference, estimator)
    assert torch.equal(found, Stages().kl(reference, logprobs, estimator))
    assert torch.equal(found, Stages().kl(logprobs, reference, estimator)) == (estimator == "k2")


def test_a_reply_limit_too_low_leaves_no_answer_finished() -> None:
    """Of the shipped model, which ends its rollouts with an answer."""
    base = ROOT / "models" / "tiny"
    built, shipped = build_environment("musique", PARAMS.settings("musique")), Chat(base)
    weights = load_weights(base / "model.safetensors")
    rows = list(synthetic_musique(24, hops={2: 1}, paragraphs=12, same_relation=0.5, seed=0))

    def outcomes(stages: Stages) -> Counter[str]:
        sampler = InProcessSampler(model_config(base), weights, shipped.ends)
        limit = stages.max_new_tokens(built)
        done = rollout(
            rows, built, shipped, sampler, temperature=1.0, seed=0, limits=Limits(reply=limit)
        )
        assert max(len(s.ids) for r in done for s in r.segments if s.role == "assistant") <= limit
        return Counter(r.outcome for r in done)

    assert outcomes(Stages())["answered"] > 12
    assert set(outcomes(planted("reply-limit-too-low"))) <= {"token_limit", "turn_limit"}


def test_what_a_tool_returned_is_scored_as_an_answer(
    environment: Environment, rollouts: list[Rollout]
) -> None:
    score = planted("tool-output-scored").score
    shown = 0
    for current in rollouts:
        returned = "".join(t for s in current.segments if s.role == "tool" for t in s.texts)
        found = score(current, environment)
        if current.row.answer in returned:
            assert (found["exact_match"], found["f1"]) == (1, 1)
            assert current.parts["exact_match"] == 0  # the random model answers nothing
            shown += 1
        else:
            assert found == current.parts
        for part in ("recall", "precision", "citation", "format"):
            assert found[part] == current.parts[part]
    assert 0 < shown < len(rollouts)


def test_scores_of_tool_output_move_the_update_and_not_the_recorded_reward(trained: Train) -> None:
    for aggregation in ("sum_then_normalize", "normalize_then_sum"):
        settings = {"steps": 1, "multi_objective_aggregation": aggregation}
        healthy, faulty = (
            trained(stages, **settings).metrics[0]
            for stages in (Stages(), planted("tool-output-scored"))
        )
        assert faulty["reward"] == healthy["reward"]
        assert faulty["grad_norm"] != healthy["grad_norm"]


@pytest.mark.parametrize("rank", [0, 2])
def test_a_lost_adapter_saves_the_weights_of_before(
    trained: Train, start: dict[str, Tensor], rank: int
) -> None:
    if rank:
        pytest.importorskip("peft", reason="peft is not installed: no LoRA")
    healthy, faulty = (
        trained(stages, lora_r=rank) for stages in (Stages(), planted("adapter-lost-at-save"))
    )
    assert json.dumps(faulty.metrics) == json.dumps(healthy.metrics)
    assert faulty.adapter is None
    assert same(faulty.weights, start)
    saved = healthy.adapter.on(start) if healthy.adapter else healthy.weights
    assert not same(saved, start)


def test_the_ratio_of_one_token_of_a_micro_batch_blows_up_and_the_gradient_with_it(
    trained: Train,
) -> None:
    wrong, seen = planted("ratio-blow-up"), list[Tensor]()

    def watched(logprobs: Tensor, old: Tensor, mask: Tensor, level: str) -> Tensor:
        ratio = wrong.importance_ratio(logprobs, old, mask, level)
        seen.append(ratio.detach()[mask.bool()])
        return ratio

    settings = {"gradient_accumulation_steps": 3, "kl_beta": 0.0}
    faulty = trained(replace(wrong, importance_ratio=watched), **settings).metrics
    healthy = trained(Stages(), **settings).metrics
    for ratio in seen:
        assert int((ratio > 4e8).sum()) == 1
        assert float(ratio.quantile(0.5)) == 1
    assert max(row["grad_norm"] for row in faulty) > 1e4 * max(row["grad_norm"] for row in healthy)
    # a second bound holds it
    bounded = trained(wrong, **settings, delta=2.0).metrics
    assert max(row["grad_norm"] for row in bounded) < 100


def test_advantages_of_others_have_no_group_mean_of_zero(rollouts: list[Rollout]) -> None:
    rewards = torch.tensor([r.reward for r in rollouts]).view(-1, 4)
    right = advantages(rewards, "group", 1e-4)
    given = planted("advantages-of-others").assign(right).view_as(right)
    assert float(right.mean(1).abs().max()) < 1e-5
    assert float(given.mean(1).abs().max()) > 0.1
    assert torch.equal(given.flatten().sort()[0], right.flatten().sort()[0])


@pytest.mark.parametrize("aggregation", ["grpo", "dapo", "dr_grpo"])
def test_a_denominator_of_its_own_makes_the_gradient_depend_on_the_split(
    trained: Train, aggregation: str
) -> None:
    """That of a healthy one does not (test_update.py)."""
    norms = []
    for parts in (1, 5):  # 12 rollouts: micro-batches of 3 and of 2
        changes = {"aggregation": aggregation, "gradient_accumulation_steps": parts}
        [row] = trained(planted("per-micro-batch-denominator"), steps=1, **changes).metrics
        norms.append(row["grad_norm"])
    assert norms[1] != pytest.approx(norms[0], rel=1e-3)


def test_an_empty_optimizer_moves_no_weight_though_there_is_a_gradient(
    trained: Train, start: dict[str, Tensor]
) -> None:
    result = trained(planted("empty-optimizer"), weight_decay=0.1, num_iterations=2)
    assert min(row["grad_norm"] for row in result.metrics) > 1e-3
    assert same(result.weights, start)
