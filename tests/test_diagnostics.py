"""What a run records: each quantity against another way to compute it, and under every planted fault."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr
from torch import Tensor
from torch.optim import Optimizer

from rlvr_debug.causes import stages_with
from rlvr_debug.environments.base import CALL_ERRORS, Transcript
from rlvr_debug.environments.gsm8k import GSM8KRow
from rlvr_debug.errors import InputError
from rlvr_debug.grpo.loss import Experience
from rlvr_debug.grpo.objective import Totals
from rlvr_debug.grpo.policy import Policy, build_policy
from rlvr_debug.grpo.settings import DiagnosticSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.trainer import accumulate, build_optimizer
from rlvr_debug.grpo.training import Observer, Progress, Step, TrainerState
from rlvr_debug.logs.log import make_log
from rlvr_debug.logs.structured import Rows
from rlvr_debug.metrics.logprobs import TINY_STD, gradient_metrics, loss_terms
from rlvr_debug.metrics.observer import open_trackers
from rlvr_debug.metrics.rollouts import (
    conversation_metrics,
    group_metrics,
    part_metrics,
    pass_at_k,
    quantiles,
    roles,
    token_metrics,
)
from rlvr_debug.metrics.weights import change_metrics, expected_change, lora_norm, weight_change
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout, Segment
from tests.small import AGGREGATIONS, LEVELS, SETTINGS, Train

ROLES = ["prompt", "assistant", "tool", "padding"]

# --- rewards

groups = st.tuples(st.integers(1, 5), st.integers(2, 8)).flatmap(
    lambda shape: st.lists(
        st.lists(st.sampled_from([0.0, 0.1, 0.7, 1.0]), min_size=shape[1], max_size=shape[1]),
        min_size=shape[0],
        max_size=shape[0],
    )
)


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_all_draws_with_a_right_one(n: int, data: Any) -> None:
    right, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = list(combinations([1] * right + [0] * (n - right), k))
    assert pass_at_k(n, right, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@given(groups)
def test_rewards_within_and_between_groups_are_numpy_s(found: list[list[float]]) -> None:
    rewards = np.array(found)
    given = group_metrics(torch.tensor(found), torch.tensor(rewards >= 1))
    assert given["reward"] == pytest.approx(rewards.mean(), abs=1e-6)
    assert given["reward_std"] == pytest.approx(rewards.std(ddof=1), abs=1e-6)
    within = rewards.std(1, ddof=1).mean()
    assert given["reward_std/within_groups"] == pytest.approx(within, abs=1e-6)
    if len(found) > 1:
        between = rewards.mean(1).std(ddof=1)
        assert given["reward_std/between_groups"] == pytest.approx(between, abs=1e-6)
    alike = [len(set(group)) == 1 for group in found]
    assert given["frac_reward_zero_std"] == pytest.approx(np.mean(alike))
    for name, value in (("all_right", 1.0), ("all_wrong", None)):
        wanted = [
            same and (group[0] == 1.0) == (value == 1.0)
            for same, group in zip(alike, found, strict=True)
        ]
        assert given[f"frac_reward_zero_std/{name}"] == pytest.approx(np.mean(wanted))
    assert given["pass@1"] == pytest.approx((rewards >= 1).mean())
    best = given[f"pass@{rewards.shape[1]}"]
    assert best == pytest.approx((rewards >= 1).any(1).mean())


def test_equal_rewards_are_a_dead_group_though_their_float32_deviation_is_not_0() -> None:
    rewards = torch.full((1, 7), 0.7)
    assert rewards.std() > 0
    found = group_metrics(rewards, torch.zeros(1, 7, dtype=torch.bool))
    assert found["frac_reward_zero_std"] == found["frac_reward_zero_std/all_wrong"] == 1


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=2, max_size=20))
def test_correlations_are_pearson_s_and_left_out_where_there_is_none(
    rows: list[tuple[int, int, int]],
) -> None:
    a, b, total = (list(map(float, column)) for column in zip(*rows, strict=True))
    found = part_metrics({"a": a, "b": b}, total)
    columns = {"reward": total, "a": a, "b": b}
    for x, y in (("reward", "a"), ("reward", "b"), ("a", "b")):
        key = f"reward_correlation/{x}/{y}"
        if min(len(set(columns[x])), len(set(columns[y]))) == 1:
            assert key not in found
        else:
            assert found[key] == pytest.approx(pearsonr(columns[x], columns[y])[0], abs=1e-12)
    assert found["rewards/a/std"] == pytest.approx(np.std(a, ddof=1))


# --- log-probabilities


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=30))
def test_quantiles_are_numpy_s(values: list[float]) -> None:
    found = quantiles("x", torch.tensor(values, dtype=torch.float64), (0, 1, 50, 99, 100))
    expected = np.percentile(values, [0, 1, 50, 99, 100])
    assert list(found) == ["x/min", "x/p01", "x/p50", "x/p99", "x/max"]
    assert list(found.values()) == pytest.approx(list(expected), abs=1e-12)


# --- tokens


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_every_token_has_one_role_and_is_counted_there(
    tokens: list[tuple[bool, bool, bool]],
) -> None:
    sampled, real, loss = torch.tensor(tokens).T[:, None]
    real = real | sampled
    found = roles(sampled, real)
    assert [*found] == ROLES
    assert torch.equal(torch.stack(list(found.values())).sum(0), torch.ones(1, len(tokens)).long())
    first = sampled[0].tolist().index(True) if sampled.any() else len(tokens)
    assert not found["prompt"][0, first:].any()
    assert not found["tool"][0, :first].any()
    counted = token_metrics(loss, sampled, real)
    assert sum(counted[f"trained_tokens/{role}"] for role in ROLES) == counted["trained_tokens"]


# --- conversations


def test_conversations_are_counted_by_end_by_turn_and_by_what_was_wrong_with_a_call() -> None:
    def made(outcome: str, lengths: list[int], calls: int, **errors: int) -> Rollout:
        segments = [Segment("assistant", [1] * n, [-1.0] * n) for n in lengths]
        transcript = Transcript(calls=calls)
        prompt = Segment("prompt", [1, 1])
        return Rollout(
            GSM8KRow("", "", "#### 1"),
            [prompt, *segments],
            transcript,
            outcome=outcome,
            call_errors=Counter(errors),
        )

    found = conversation_metrics(
        [
            made("answered", [3, 4], 1),
            made("token_limit", [5], 0),
            made("turn_limit", [1, 1, 1], 3, unknown_tool=2),
            made("answered", [1], 0),
        ]
    )
    assert (found["completions/mean_length"], found["completions/max_length"]) == (4, 7)
    assert found["completions/min_length"] == found["completions/min_terminated_length"] == 1
    assert found["completions/mean_terminated_length"] == pytest.approx(11 / 3)
    assert found["completions/clipped_ratio"] == found["outcomes/token_limit"] == 0.25
    assert (found["outcomes/answered"], found["turns/mean"], found["turns/max"]) == (0.5, 1.75, 3)
    assert (found["tools/call_frequency"], found["tools/failure_frequency"]) == (1, 0.5)
    failures = {kind: found[f"tools/failures/{kind}"] for kind in CALL_ERRORS}
    assert failures == {**dict.fromkeys(CALL_ERRORS, 0), "unknown_tool": 0.5}
    all_cut = conversation_metrics([made("token_limit", [5], 0)])
    assert all_cut["completions/max_terminated_length"] == 0


# --- gradients


def ragged(seed: int, beta: float, parts: int = 1) -> Experience:
    """Six sequences in three groups, tool tokens among them, one with nothing to train on."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(40, (6, 12), generator=generator)
    real = torch.arange(12) < torch.tensor([12, 5, 9, 7, 12, 3])[:, None]
    sampled = real & (torch.rand(ids.shape, generator=generator) < 0.6)
    sampled[:, 0] = False
    sampled[4] = False
    reference, sampler = -torch.rand(2, *ids.shape, generator=generator)
    gains = torch.randn(6, generator=generator)
    totals = Totals(6, int(sampled.sum()), parts, 11)
    held = reference if beta else None
    return Experience(ids, sampled, sampler, real, sampled, real, gains, held, None, totals)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("parts", [1, 4])
def test_the_terms_gradients_sum_to_what_the_update_s_own_backward_pass_sees(
    random_model: Callable[..., Any], aggregation: Any, level: Any, parts: int
) -> None:
    changed = replace(
        SETTINGS,
        kl_beta=0.3,
        aggregation=aggregation,
        importance_sampling_level=level,
        gradient_accumulation_steps=parts,
    )
    seen: list[Tensor] = []

    def watched(*arguments: Any, **options: Any) -> Tensor:
        found = Stages().logprobs(*arguments, **options)
        if found.requires_grad:
            found.retain_grad()
        seen.append(found)
        return found

    experience = ragged(0, changed.kl_beta, parts)
    loss, logprobs = accumulate(random_model(0), experience, changed, Stages(logprobs=watched))
    terms = loss_terms(logprobs, experience, changed, Stages())
    assert sum(term.value for term in terms.values()) == pytest.approx(loss, rel=1e-5)
    start = 0
    for found in seen:
        expected = torch.zeros_like(found) if found.grad is None else found.grad
        rows = slice(start, start + len(found))
        by_term = [term.gradient[rows, : found.shape[1]] for term in terms.values()]
        assert torch.allclose(torch.stack(by_term).sum(0), expected, rtol=1e-4, atol=1e-8)
        start += len(found)
    assert start == 6
    assert float(terms["kl"].gradient.norm()) > 1e-3


@given(st.integers(0, 100), st.lists(st.sampled_from([0.0, 0.04, 0.06]), min_size=3, max_size=3))
def test_the_share_of_tiny_groups_is_what_is_left_when_the_others_have_no_advantage(
    seed: int, spread: list[float]
) -> None:
    changed = replace(SETTINGS, aggregation="dapo")
    experience = ragged(seed, 0.0)
    logprobs = -torch.rand(experience.ids.shape, generator=torch.Generator().manual_seed(seed))

    def norm(gains: Tensor) -> float:
        terms = loss_terms(logprobs, replace(experience, advantages=gains), changed, Stages())
        return float(terms["policy"].gradient.norm())

    tiny = torch.tensor([value < TINY_STD for value in spread]).repeat_interleave(2)
    terms = loss_terms(logprobs, experience, changed, Stages())
    found = gradient_metrics(terms, torch.tensor(spread))
    expected = (norm(experience.advantages * tiny) / norm(experience.advantages)) ** 2
    assert found["logprob_grad_norm/tiny_std_share"] == pytest.approx(expected, abs=1e-6)
    assert found["logprob_grad_norm"] == pytest.approx(found["logprob_grad_norm/policy"])
    without = loss_terms(
        logprobs, replace(experience, advantages=torch.zeros(6)), changed, Stages()
    )
    assert "logprob_grad_norm/tiny_std_share" not in gradient_metrics(without, torch.zeros(3))


# --- weights


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lora_r": 2},
        {"weight_decay": 0.3, "num_iterations": 2},
        {"max_grad_norm": 1e-3, "lr_scheduler_type": "cosine", "steps": 3},
    ],
)
def test_weights_move_as_adamw_says_at_every_step(trained: Train, changes: dict[str, Any]) -> None:
    if "lora_r" in changes:
        pytest.importorskip("peft", reason="peft is not installed: no LoRA")
    for row in trained(**changes).metrics:
        assert row["weights/update_ratio"] == pytest.approx(1, rel=1e-4)
        assert row["weights/update_error"] < 1e-3
        limit = {**vars(SETTINGS), **changes}["max_grad_norm"]
        assert row["grad_norm/clipped"] == pytest.approx(min(row["grad_norm"], limit), rel=1e-4)


def test_a_step_without_a_learning_rate_has_no_expected_change(trained: Train) -> None:
    first, second = trained(warmup_steps=1).metrics
    assert (first["learning_rate"], first["weights/update_norm"], first["weights/moved"]) == (
        0,
    ) * 3
    assert "weights/update_ratio" not in first
    assert second["weights/update_ratio"] == pytest.approx(1, rel=1e-4)


def stepped(model: Any, held: list[Tensor], learning_rate: float) -> dict[str, float]:
    """A step on a gradient of ones with an optimizer that holds these parameters alone."""
    policy = Policy(model, None, None)
    optimizer = build_optimizer(held, replace(SETTINGS, learning_rate=learning_rate))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    expected = expected_change(policy, optimizer)
    optimizer.step()
    return change_metrics([weight_change(expected, policy)])


def test_of_a_large_model_a_part_of_the_weights_tells_of_all(
    random_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> dict[str, float]:
        model = random_model(0)
        return stepped(model, list(model.parameters()), 1e-3)

    every = found()
    monkeypatch.setattr("rlvr_debug.metrics.weights._COPIED", 1000)
    some = found()
    assert some != every
    assert some == pytest.approx(every, rel=0.05, abs=1e-4)
    assert some["grad_norm/clipped"] == every["grad_norm/clipped"]


def test_weights_that_the_optimizer_does_not_hold_count_as_not_moved(
    random_model: Callable[..., Any],
) -> None:
    healthy, frozen = random_model(0), random_model(0)
    assert stepped(healthy, list(healthy.parameters()), 1e-3)["weights/update_ratio"] == (
        pytest.approx(1, rel=1e-4)
    )
    found = stepped(frozen, [torch.nn.Parameter(torch.zeros(1))], 1e-3)
    assert found["weights/expected_update_norm"] > 0.01
    assert found["weights/update_ratio"] == found["weights/moved"] == 0
    assert found["weights/update_error"] == pytest.approx(1)


def test_rounding_to_bfloat16_shows_as_weights_that_do_not_move(
    random_model: Callable[..., Any],
) -> None:
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = random_model(0).to(dtype)
        found[dtype] = stepped(model, list(model.parameters()), 1e-6)
    assert found[torch.float32]["weights/moved"] > 0.99
    assert found[torch.bfloat16]["weights/moved"] < 0.1
    assert found[torch.bfloat16]["weights/update_error"] > 0.9


def test_the_adapter_s_norm_is_that_of_what_it_adds_to_the_weights(
    random_model: Callable[..., Any],
) -> None:
    pytest.importorskip("peft", reason="peft is not installed: no LoRA")
    model = random_model(0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    policy = build_policy(model, None, replace(SETTINGS, lora_r=3, lora_alpha=7), seed=0)
    assert lora_norm(policy) == 0
    with torch.no_grad():
        for parameter in policy.trained:
            parameter += 0.1
    added = [tensor - before[name] for name, tensor in policy.weights().items()]
    expected = math.sqrt(sum(float(delta.square().sum()) for delta in added))
    assert lora_norm(policy) == pytest.approx(expected, rel=1e-4)


# --- faults


MISALIGNED = {"sampler_gap/mean_abs": 1e-3}
# by fault, what must exceed how much in the step's row, where a sound run stays far below it
GIVEN_AWAY: dict[str, dict[str, float]] = {
    "advantages-of-others": {"advantages/error_abs_max": 0.5, "logprob_grad_norm/error": 0.5},
    "attention-from-loss-mask": {"sampling/importance_sampling_ratio/outside_10_percent": 0.3},
    "eos-not-trained": {"logprob_grad_norm/error": 0.1},
    "kl-reversed": {"logprob_grad_norm/error": 1e-5},
    "kl-subtracted": {"logprob_grad_norm/error": 1e-3},
    "leave-one-out-residue": {"advantages/error_abs_max": 0.5},
    "per-micro-batch-denominator": {"logprob_grad_norm/error": 0.01},
    "prompt-without-tools": MISALIGNED,
    "random-reward": {"advantages/error_abs_max": 0.5},
    "ratio-blow-up": {"logprob_grad_norm/error": 0.1},
    "temperature-ignored": MISALIGNED,
    "tool-output-scored": {"advantages/error_abs_max": 0.1},
    "tool-tokens-trained": {"trained_tokens/tool": 10, "logprob_grad_norm/error": 0.5},
    "tool-turn-rendered-alone": MISALIGNED,
}
# settings under which a fault acts
ACTS: dict[str, dict[str, Any]] = {
    "kl-reversed": {"kl_beta": 0.5, "steps": 2},
    "kl-subtracted": {"kl_beta": 0.5, "steps": 2},  # at the first step policy and reference are one
    "per-micro-batch-denominator": {"aggregation": "dapo", "gradient_accumulation_steps": 5},
    "temperature-ignored": {"temperature": 0.5},
    # whoever calls the tool earns more with the fault and without; scaled, that is the same
    "tool-output-scored": {"scale_rewards": "none"},
}
# of what was sampled, and nothing of what was trained
SAMPLED = re.compile(
    "reward|frac_reward|pass@|completions|turns|tools|outcomes|sampled_tokens|entropy"
)


@pytest.fixture(scope="module")
def healthy(trained: Train) -> Train:
    """The training without a fault, made once for each of its settings."""
    return cache(trained)


@pytest.mark.parametrize("fault", GIVEN_AWAY)
def test_a_fault_cannot_hide_itself(trained: Train, healthy: Train, fault: str) -> None:
    changes = {"steps": 1, **ACTS.get(fault, {})}
    faulty, sound = trained(stages_with([fault]), **changes).metrics, healthy(**changes).metrics
    for name, least in GIVEN_AWAY[fault].items():
        assert faulty[-1][name] > least > 10 * sound[-1][name]
    # what was sampled is told as it was
    of_rollouts = {name: value for name, value in sound[0].items() if SAMPLED.match(name)}
    assert len(of_rollouts) > 40
    assert {name: faulty[0].get(name) for name in of_rollouts} == of_rollouts


def test_an_optimizer_without_weights_shows_as_an_expected_change_that_did_not_come(
    trained: Train,
) -> None:
    for row in trained(stages_with(["empty-optimizer"])).metrics:
        assert row["weights/expected_update_norm"] > 0.01
        assert row["weights/update_ratio"] == row["weights/moved"] == 0


def test_a_limit_that_cuts_every_reply_shows_as_truncation(trained: Train) -> None:
    found, healthy = (
        trained(stages, steps=1).metrics[0]
        for stages in (stages_with(["reply-limit-too-low"]), Stages())
    )
    assert found["completions/clipped_ratio"] > healthy["completions/clipped_ratio"]
    assert found["completions/max_length"] < healthy["completions/max_length"]


def test_a_term_that_is_no_longer_there_shows_in_the_gradient(trained: Train) -> None:
    stages = replace(
        Stages(), aggregate=lambda values, mask, totals, how: (values * mask).sum() * 0
    )
    [row] = trained(stages, steps=1).metrics
    assert row["logprob_grad_norm"] == row["grad_norm"] == row["weights/moved"] == 0
    assert row["logprob_grad_norm/error"] == pytest.approx(1)


def test_a_stale_sampler_shows_from_the_first_update_on(trained: Train) -> None:
    _, row = trained(stages_with(["stale-sampler"])).metrics
    assert row["sampling/importance_sampling_ratio/outside_10_percent"] > 0.05
    assert row["sampler_gap/kl"] > 1e-3


# --- rollouts


def test_rollouts_are_kept_of_the_first_step_and_of_every_so_many(trained: Train) -> None:
    kept = trained(diagnostics=DiagnosticSettings(3, 5), steps=7, prompts_per_step=2).rollouts
    assert [(r["step"], r["rollout"]) for r in kept] == [
        (s, b) for s in (1, 3, 6) for b in range(5)
    ]
    assert [r["group"] for r in kept[:5]] == [0, 0, 0, 0, 1]
    assert not trained(diagnostics=DiagnosticSettings(0, 5)).rollouts


@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_a_rollout_s_record_holds_every_token_of_both_sequences(
    trained: Train, chat: Chat, beta: float
) -> None:
    result = trained(diagnostics=DiagnosticSettings(2, 100), kl_beta=beta)
    assert len(result.rollouts) == 2 * 12
    records = json.loads(json.dumps(result.rollouts))
    for record in records:
        sampled, trained_on = record["sampled"], record["trained"]
        length = len(sampled["ids"])
        for columns in (sampled, trained_on):
            assert {len(c) for c in columns.values() if c is not None} == {length}
            assert chat.tokenizer.decode(columns["ids"]) == "".join(columns["text"])
        assert {name: trained_on[name] for name in sampled} == sampled
        mine = [role == "a" for role in sampled["role"]]
        assert sampled["role"][0] == "p"
        assert trained_on["loss"] == "".join("01"[m] for m in mine)
        assert trained_on["attention"] == "1" * length
        for name in ("sampler", "trainer", *(["reference"] if beta else []), "advantage"):
            assert [value is not None for value in trained_on[name]] == mine
        assert (trained_on["reference"] is None) == (not beta)
        assert set(trained_on["advantage"]) == {None, record["advantage"]}
        for a, b in zip(trained_on["sampler"], trained_on["trainer"], strict=True):
            assert a is None or a == pytest.approx(b, abs=1e-5)
    first = [record for record in records if record["step"] == 1]
    assert np.mean([r["reward"] for r in first]) == pytest.approx(result.metrics[0]["reward"])
    written = sum(record["sampled"]["role"].count("a") for record in first)
    assert written == result.metrics[0]["sampled_tokens"]
    assert {record["sampled"]["role"].count("t") > 0 for record in first} == {True, False}


def test_a_record_shows_where_the_trained_sequence_left_the_sampled_one(trained: Train) -> None:
    keep = DiagnosticSettings(1, 12)

    def first(fault: str) -> list[dict[str, Any]]:
        return trained(stages_with([fault]), diagnostics=keep, steps=1).rollouts

    for record in first("prompt-without-tools"):
        assert "".join(record["sampled"]["text"]).count("<tools>")
        assert not "".join(record["trained"]["text"]).count("<tools>")
    for record in first("attention-from-loss-mask"):
        assert record["trained"]["attention"] == record["trained"]["loss"]
    tools = [r for r in first("tool-turn-rendered-alone") if "t" in r["sampled"]["role"]]
    assert tools
    for record in tools:
        lost = record["sampled"]["role"].count("t") - record["trained"]["role"].count("t")
        assert lost > 0
        assert len(record["sampled"]["ids"]) - len(record["trained"]["ids"]) == lost


# --- trackers


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a tracker of accelerate's, by the name `noted`, was told."""
    told: list[Any] = []

    class Noted(GeneralTracker):  # type: ignore[misc]
        name = "noted"
        requires_logging_directory = True

        def __init__(self, project: str, folder: str) -> None:
            super().__init__()
            told.append((project, folder))

        @property
        def tracker(self) -> list[Any]:
            return told

        def store_init_configuration(self, values: dict[str, Any]) -> None:
            told.append(values)

        def log(self, values: dict[str, Any], step: int | None = None) -> None:
            told.append((step, values))

        def finish(self) -> None:
            told.append("finished")

    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "noted", Noted)
    return told


def test_trackers_are_given_each_row_as_it_comes(
    trained: Train, tracker: list[Any], tmp_path: Path
) -> None:
    with open_trackers(["noted"], tmp_path / "trackers", "run", {"seed": 0}) as log:

        def watched(row: Mapping[str, Any]) -> None:
            log(row)
            assert tracker[-1][0] == row["step"] == len(tracker) - 2

        result = trained(log=watched)
    opened, configuration, *rows, end = tracker
    assert opened == ("rlvr-debug", str(tmp_path / "trackers"))
    assert (configuration, end) == ({"seed": 0}, "finished")
    assert [{"step": step, **values} for step, values in rows] == result.metrics
    assert all(type(v) in (int, float) for _, values in rows for v in values.values())


def test_a_tracker_that_is_not_installed_is_one_line_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlvr_debug.metrics.observer.find_spec", lambda name: None)
    with (
        pytest.raises(InputError, match=r"names wandb.* pip install wandb$"),
        open_trackers(["wandb"], tmp_path, "run", {}),
    ):
        pass
    with open_trackers([], tmp_path / "none", "run", {}) as log:
        log({"step": 1})
    assert not (tmp_path / "none").exists()


# --- whoever watches


class Noted(Observer):
    """Notes what it is told, with a weight at that time."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.weights: list[float] = []

    def begin_step(self, state: TrainerState) -> None:
        self.told.append(f"begin {state.step}")

    def end_stage(self, stage: str) -> None:
        self.told.append(stage)

    def before_optimizer_step(self, policy: Policy, optimizer: Optimizer) -> None:
        assert all(weight.grad is not None for weight in policy.trained)
        self.told.append("before")
        self.weights.append(float(policy.trained[0].detach().sum()))

    def after_optimizer_step(self, policy: Policy) -> None:
        self.told.append("after")
        self.weights.append(float(policy.trained[0].detach().sum()))

    def end_step(self, step: Step) -> Progress:
        self.told.append(f"end {step.number}")
        rollouts = [{"step": step.number, "rollouts": len(step.rollouts)}]
        return Progress([{"mine": step.number}], [{"sampling": 1.0}], rollouts)


def test_an_observer_is_told_each_stage_in_its_order_and_its_records_are_kept(
    trained: Train,
) -> None:
    noted = Noted()
    result = trained(observer=noted, kl_beta=0.0, num_iterations=2)
    stages = ["sampling", "batch", "logprobs", *["before", "after"] * 2, "update", "sync"]
    assert noted.told == ["begin 0", *stages, "end 1", "begin 1", *stages, "end 2"]
    before, after = noted.weights[::2], noted.weights[1::2]
    assert before[1:] == after[:-1]  # nothing but the optimizer moves the weights
    assert all(one != other for one, other in zip(before, after, strict=True))
    assert result.metrics == [{"mine": 1}, {"mine": 2}]
    assert result.seconds == [{"sampling": 1.0}] * 2
    assert result.rollouts == [{"step": step, "rollouts": 12} for step in (1, 2)]


# --- the whole row


def test_recording_more_changes_nothing_that_is_trained(trained: Train) -> None:
    unwatched, bare = trained(observer=Observer()), trained()
    full = trained(diagnostics=DiagnosticSettings(1, 12))
    assert bare.metrics == full.metrics
    assert unwatched.metrics == [{"step": 1}, {"step": 2}]
    for other in (bare, unwatched):
        assert all(torch.equal(other.weights[name], full.weights[name]) for name in full.weights)


def test_a_run_that_is_asked_for_them_has_the_original_s_debug_keys(trained: Train) -> None:
    given = {"kl_beta": 0.04, "max_prompt_length": 24, "steps": 2}
    bare = trained(**given)
    full = trained(diagnostics=DiagnosticSettings(0, 0, debug=True), **given)
    for plain, row in zip(bare.metrics, full.metrics, strict=True):
        debug = {name.removeprefix("debug/"): row[name] for name in row.keys() - plain.keys()}
        assert {name: row[name] for name in plain} == plain
        assert debug["reward_std"] == row["reward_std/within_groups"]
        assert debug["advantage_max"] == row["advantages/abs_max"] >= debug["advantage_mean"]
        # magnitudes: advantages themselves sum to 0, so that the largest has a share in the mean
        assert debug["advantage_mean"] >= debug["advantage_max"] / 12
        assert debug["active_tokens_count"] == row["trained_tokens"] == debug["tokens/assistant"]
        roles = [debug[f"tokens/{role}"] for role in ROLES]
        assert debug["total_tokens_count"] == sum(roles)
        assert debug["kl_mean"] == pytest.approx(row["kl"])
        assert debug["kl_min"] <= debug["kl_mean"] <= debug["kl_max"] == row["kl/max"]
        # the mean of what the estimator k1 takes the KL for
        k1 = debug["policy_logp_mean"] - debug["ref_logp_mean"]
        assert k1 == pytest.approx(row["kl/k1"], abs=1e-6)
        assert debug["context_length_mean"] <= debug["context_length_max"]
        assert debug["context_length_truncated"] == 12 * debug["context_length_truncation_rate"] > 0
        # and diagnose reads them
        read = make_log("run", [Rows("JSONL", [row])])
        assert read.series("advantage_size") == [debug["advantage_mean"]]
        assert read.series("prompt_truncated") == [debug["context_length_truncation_rate"]]
    assert all(torch.equal(bare.weights[name], full.weights[name]) for name in bare.weights)


def test_seconds_are_those_of_the_stages(trained: Train) -> None:
    for row in trained(kl_beta=0.04).seconds:
        stages = ["step", "sampling", "batch", "logprobs", "update", "diagnostics", "sync"]
        assert list(row) == stages
        assert all(row[stage] > 0 for stage in stages)
