"""What the probes of what comes before the update measure, and what else than a planted fault they find."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.advantages import SCALINGS, advantages
from rlvr_debug.grpo.policy import Policy
from rlvr_debug.grpo.stages import Stages, loss_mask
from rlvr_debug.probes import Measurement, Subject
from rlvr_debug.probes.evaluation import train_eval_equality
from rlvr_debug.probes.rewards import advantage_scale, group_integrity, reward_audit
from rlvr_debug.probes.sequences import context_sensitivity, limits, sequence_diff, token_roles
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout
from tests.probe_subjects import (
    Build,
    draw,
    with_faults,
    with_rewards,
    with_settings,
    with_stage,
)


@pytest.fixture(scope="module")
def healthy(chat: Chat, talkative: Build) -> Subject:
    return draw(chat, talkative, 3)


# --- context-sensitivity


def test_a_reply_s_first_token_does_not_make_a_blind_policy_seem_to_read(healthy: Subject) -> None:
    # it is predicted from the last token of the prompt, which no attention mask hides from itself
    found = context_sensitivity(with_faults(healthy, "attention-from-loss-mask"))
    assert found.measured == {"mean_change_prompt": 0, "mean_change_tool_results": 0}
    seen = context_sensitivity(healthy)
    assert min(seen.measured.values()) > 1e-2


@pytest.mark.parametrize("hidden", ["prompt", "tool_results"])
def test_hiding_the_prompt_alone_or_the_tool_results_alone_is_found(
    healthy: Subject, hidden: str
) -> None:
    def mask(sampled: Tensor, real: Tensor) -> Tensor:
        in_prompt = sampled.cumsum(1) == 0
        return real & (sampled | (in_prompt if hidden == "tool_results" else ~in_prompt))

    found = context_sensitivity(with_stage(healthy, attention_mask=mask))
    assert not found.passed
    blind = [name for name, change in found.measured.items() if change < 1e-4]
    assert blind == [f"mean_change_{hidden}"]


def test_a_loss_that_counts_nothing_does_not_pass_for_one_that_reads(healthy: Subject) -> None:
    nothing = with_stage(healthy, loss_mask=lambda sampled, real: torch.zeros_like(sampled))
    assert not context_sensitivity(nothing).passed


# --- sequence-diff


def test_the_tokens_that_a_fault_loses_are_counted(healthy: Subject) -> None:
    chat, environment = healthy.chat, healthy.environment
    found = sequence_diff(with_faults(healthy, "prompt-without-tools"))
    messages = environment.messages(healthy.rollouts[0].row)
    lost = len(chat.prompt(messages, environment.tools)) - len(chat.prompt(messages, []))
    assert found.measured["share_of_rollouts"] == 1
    assert found.measured["tokens_missing"] - found.measured["tokens_added"] == lost

    found = sequence_diff(with_faults(healthy, "tool-turn-rendered-alone"))
    tools = [sum(s.role == "tool" for s in r.segments) for r in healthy.rollouts]
    lost = len(chat.encode("\n")) + len(chat.encode("<|im_start|>assistant\n"))
    assert found.measured["share_of_rollouts"] == sum(map(bool, tools)) / len(tools)
    assert found.measured["tokens_missing"] == lost * sum(tools) / len(tools)
    assert found.measured["tokens_added"] == 0


def test_one_token_in_one_rollout_is_enough(healthy: Subject) -> None:
    first = healthy.rollouts[0]
    subject = with_stage(
        healthy,
        trained_prompt=lambda current, segment, env, chat: (
            [*segment.ids[:-1], 0] if current is first else segment.ids
        ),
    )
    found = sequence_diff(subject)
    assert not found.passed
    assert found.measured["share_of_rollouts"] == 1 / len(healthy.rollouts)


# --- token-roles


def test_tokens_are_counted_by_role(healthy: Subject) -> None:
    found = token_roles(healthy).measured
    segments = [s for r in healthy.rollouts for s in r.segments]
    for role in ("prompt", "assistant", "tool"):
        assert found[f"tokens_{role}"] == sum(len(s.ids) for s in segments if s.role == role)
    assert found["trained_assistant"] == found["tokens_assistant"]
    faulty = token_roles(with_faults(healthy, "tool-tokens-trained")).measured
    assert faulty["trained_and_not_sampled"] == faulty["trained_tool"] == found["tokens_tool"] > 0
    faulty = token_roles(with_faults(healthy, "eos-not-trained")).measured
    assert faulty["sampled_and_not_trained"] == sum(s.role == "assistant" for s in segments)


def test_replies_that_were_cut_are_left_out_whole_and_nothing_else_is(healthy: Subject) -> None:
    rollouts = [
        replace(r, outcome="token_limit") if i % 3 == 0 else r
        for i, r in enumerate(healthy.rollouts)
    ]
    subject = with_settings(replace(healthy, rollouts=rollouts), mask_truncated_completions=True)
    found = token_roles(subject)
    assert found.passed
    assert 0 < found.measured["trained_assistant"] < found.measured["tokens_assistant"]
    assert not token_roles(with_faults(subject, "eos-not-trained")).passed


@pytest.mark.parametrize("role", ["prompt", "padding"])
def test_a_trained_prompt_or_padding_fails(healthy: Subject, role: str) -> None:
    def mask(sampled: Tensor, real: Tensor) -> Tensor:
        return loss_mask(sampled, real) | (~real if role == "padding" else sampled.cumsum(1) == 0)

    found = token_roles(with_stage(healthy, loss_mask=mask))
    assert not found.passed
    assert found.measured[f"trained_{role}"] == found.measured["trained_and_not_sampled"] > 0


# --- limits


def test_prompts_near_the_limit_are_counted_over_rows(healthy: Subject) -> None:
    longest = max(len(r.segments[0].ids) for r in healthy.rollouts)
    assert limits(with_settings(healthy, max_prompt_length=longest + 11)).passed
    near = limits(with_settings(healthy, max_prompt_length=longest))
    assert not near.passed
    assert near.measured["share_of_prompts_near_or_over"] > 0.2
    cut = [replace(r, prompt_cut=100) for r in healthy.rollouts]
    over = limits(with_settings(replace(healthy, rollouts=cut), max_prompt_length=longest + 50))
    assert over.measured["share_of_prompts_near_or_over"] == 1
    assert over.measured["longest_prompt"] == longest + 100


def test_conversations_near_the_context_limit_are_counted_with_what_tools_said(
    healthy: Subject,
) -> None:
    lengths = sorted(len(r.ids) for r in healthy.rollouts)
    assert "context_limit" not in limits(healthy).measured

    def limited(most: int) -> Measurement:
        environment = copy.copy(healthy.environment)
        environment.max_context = most
        return limits(replace(healthy, environment=environment))

    roomy = limited(lengths[-1] + 11)
    assert roomy.passed
    assert roomy.measured["longest_context"] == lengths[-1]
    assert roomy.measured["share_of_rollouts_near_or_over"] == 0
    near = limited(lengths[len(lengths) // 2])
    assert not near.passed
    assert near.measured["share_of_rollouts_near_or_over"] >= 0.5
    ended = replace(
        healthy, rollouts=[replace(r, outcome="context_limit") for r in healthy.rollouts]
    )
    environment = copy.copy(healthy.environment)
    environment.max_context = 10**6
    assert not limits(replace(ended, environment=environment)).passed


def test_replies_that_were_cut_fail_above_a_fifth(healthy: Subject) -> None:
    cut = [replace(r, outcome="token_limit") for r in healthy.rollouts]
    assert not limits(replace(healthy, rollouts=cut)).passed
    assert limits(with_stage(healthy, max_new_tokens=lambda env: env.max_new_tokens + 8)).passed


# --- reward-audit


def test_only_the_spread_within_groups_counts(healthy: Subject) -> None:
    # every prompt's rollouts earn the same, and prompts differ: nothing to learn from
    rollouts = [
        replace(r, parts=dict.fromkeys(r.parts, float(i < 8)))
        for i, r in enumerate(healthy.rollouts)
    ]
    found = reward_audit(replace(healthy, rollouts=rollouts))
    assert not found.passed
    assert found.measured["std_within_groups"] == 0
    assert found.measured["std_of_all"] > 0.5


def test_parts_are_held_to_the_reward(healthy: Subject) -> None:
    parts = [
        {**r.parts, "f1": 0.0, "recall": (1 - r.parts["precision"]) / 2} for r in healthy.rollouts
    ]
    rollouts = [replace(r, parts=p) for r, p in zip(healthy.rollouts, parts, strict=True)]
    found = reward_audit(replace(healthy, rollouts=rollouts)).measured
    assert found["constant_parts"] >= 1
    assert "correlation_f1" not in found
    assert found["correlation_recall"] < found["correlation_precision"]


# --- group-integrity


def test_rollouts_of_two_prompts_in_a_group_or_of_one_prompt_in_two_fail(healthy: Subject) -> None:
    order = [4, 1, 2, 3, 0, *range(5, 16)]
    mixed = group_integrity(replace(healthy, rollouts=[healthy.rollouts[i] for i in order]))
    assert not mixed.passed
    assert mixed.measured["groups_of_several_prompts"] == 2
    twice = group_integrity(replace(healthy, rollouts=healthy.rollouts[:4] * 2))
    assert not twice.passed
    assert twice.measured["groups_of_a_prompt_that_another_has"] == 1


def test_duplicates_and_dead_groups_are_counted_and_no_bug(healthy: Subject) -> None:
    same = [healthy.rollouts[i - i % 4] for i in range(16)]
    found = group_integrity(replace(healthy, rollouts=same))
    assert found.passed
    assert found.measured["share_of_duplicate_rollouts"] == 3 / 4
    assert found.measured["share_of_dead_groups"] == 1


def test_a_wrong_order_is_found_though_nobody_earned_anything(healthy: Subject) -> None:
    nothing = with_rewards(healthy, 0.0)
    assert group_integrity(nothing).passed
    found = group_integrity(with_faults(nothing, "advantages-of-others"))
    assert not found.passed
    assert found.measured["largest_group_mean_of_advantages"] == 0


def test_advantages_without_a_baseline_fail(healthy: Subject) -> None:
    subject = with_stage(healthy, advantages=lambda rewards, scaling, epsilon: rewards)
    assert not group_integrity(subject).passed


# --- advantage-scale


def times_25(rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
    return 25 * advantages(rewards, scaling, epsilon)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("rewards", [None, (0.0,), (1.0, 0.0, 0.0, 0.0)])
def test_advantages_times_25_fail_whatever_the_rollouts_earned(
    healthy: Subject, scaling: str, rewards: tuple[float, ...] | None
) -> None:
    subject = with_settings(healthy, scale_rewards=scaling)
    if rewards is not None:
        subject = with_rewards(subject, *rewards)
    assert advantage_scale(subject).passed
    assert not advantage_scale(replace(subject, stages=Stages(advantages=times_25))).passed


def test_a_stage_that_breaks_only_on_the_rewards_at_hand_fails(healthy: Subject) -> None:
    def no_baseline_in_between(rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
        return advantages(rewards, scaling, epsilon) + 5 * (rewards == 0.75)

    subject = with_rewards(healthy, 0.75, 0.0, 0.25, 0.0)
    assert advantage_scale(subject).passed
    broken = with_stage(subject, advantages=no_baseline_in_between)
    assert not advantage_scale(broken).passed


def test_a_winner_among_many_equal_groups_is_no_bug_of_batch_scaling(healthy: Subject) -> None:
    subject = with_settings(with_rewards(healthy, 1.0, *[0.0] * 15), scale_rewards="batch")
    found = advantage_scale(subject)
    assert found.measured["largest_advantage"] > 1.5  # above the bound of a group of four
    assert found.passed


def test_groups_of_nearly_equal_rewards_that_dominate_the_gradient_fail(healthy: Subject) -> None:
    subject = with_rewards(healthy, 0.5, 0.501, 0.499, 0.5)
    found = advantage_scale(subject)
    assert not found.passed
    assert found.measured["gradient_share_of_small_spread"] == 1
    assert found.measured["groups_of_small_spread"] == 1
    # beside one group that differs, they weigh next to nothing where nothing is scaled
    rewards = [1.0, 0.0, 0.0, 1.0, *[0.5, 0.501, 0.499, 0.5] * 3]
    subject = with_rewards(healthy, *rewards)
    scaled = advantage_scale(subject)
    plain = advantage_scale(with_settings(subject, scale_rewards="none"))
    assert plain.passed
    assert plain.measured["gradient_share_of_small_spread"] < 1e-3
    assert scaled.measured["gradient_share_of_small_spread"] > 0.1
    assert scaled.measured["groups_of_small_spread"] == 3 / 4


def test_a_reward_apart_from_equal_ones_that_the_rollouts_did_not_earn_is_tried(
    healthy: Subject,
) -> None:
    nothing = with_rewards(healthy, 0.0)
    found = advantage_scale(with_faults(nothing, "leave-one-out-residue"))
    assert not found.passed
    assert found.measured["largest_advantage"] == 0
    assert found.measured["largest_advantage_of_one_apart"] > 100


@pytest.mark.parametrize(
    "changes",
    [
        {"scale_rewards": "group"},
        {"scale_rewards": "batch"},
        {"multi_objective_aggregation": "normalize_then_sum"},
    ],
    ids=str,
)
def test_the_largest_possible_advantage_can_be_reached(
    healthy: Subject, changes: dict[str, str]
) -> None:
    # one winner, and all else equal to its group's mean
    one = with_rewards(healthy, 1.0, 0.0, 0.0, 0.0, *[0.25] * 12)
    found = advantage_scale(with_settings(one, advantage_epsilon=1e-12, **changes)).measured
    assert found["largest_advantage"] == pytest.approx(found["largest_possible"], rel=1e-4)


# --- train-eval-equality


def test_a_prompt_that_evaluation_would_not_show_fails(healthy: Subject) -> None:
    first = healthy.rollouts[0]
    prompt, *others = first.segments
    shown = replace(first, segments=[replace(prompt, ids=prompt.ids[1:]), *others])
    subject = replace(healthy, rollouts=[shown, *healthy.rollouts[1:]])
    found = train_eval_equality(subject)
    assert not found.passed
    assert found.measured["share_of_prompts_that_differ"] == 1 / 16


def test_a_prompt_that_the_limit_cut_is_left_to_the_probe_of_limits(healthy: Subject) -> None:
    cut = [
        replace(
            r,
            segments=[replace(r.segments[0], ids=r.segments[0].ids[-10:]), *r.segments[1:]],
            prompt_cut=len(r.segments[0].ids) - 10,
        )
        for r in healthy.rollouts
    ]
    subject = with_settings(replace(healthy, rollouts=cut), max_prompt_length=10)
    assert train_eval_equality(subject).passed
    assert train_eval_equality(subject).measured["share_of_prompts_cut"] == 1
    assert not limits(subject).passed


def test_a_tensor_that_is_not_saved_or_saved_too_early_fails(healthy: Subject) -> None:
    def without_head(policy: Policy) -> dict[str, Tensor]:
        return {n: w for n, w in policy.weights().items() if n != "lm_head.weight"}

    found = train_eval_equality(with_stage(healthy, saved_weights=without_head))
    assert (found.passed, found.measured["tensors_not_saved"]) == (False, 1)
    early = {name: weight.clone() for name, weight in healthy.policy.weights().items()}
    found = train_eval_equality(with_stage(healthy, saved_weights=lambda policy: early))
    assert not found.passed
    assert found.measured["largest_weight_difference"] > 1e-2


def test_a_part_scored_otherwise_fails_though_the_reward_is_the_same(healthy: Subject) -> None:
    def score(current: Rollout, environment: Environment) -> dict[str, float]:
        return {
            **current.parts,
            "recall": current.parts["precision"],
            "precision": current.parts["recall"],
        }

    shifted = [
        replace(r, parts={**r.parts, "recall": r.parts["recall"] / 2}) for r in healthy.rollouts
    ]
    assert not train_eval_equality(replace(healthy, rollouts=shifted)).passed
    swapped = with_stage(healthy, score=score)
    assert reward_audit(swapped).passed  # the weights are equal
