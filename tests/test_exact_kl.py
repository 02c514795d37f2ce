"""The KL term on exact policies, against autograd of the same sums written plainly."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lab.exact_kl import (
    direction_report,
    directions,
    importance_sampling_report,
    kl,
    kl_gradient,
    random_policies,
    term_gradient,
    terms,
)
from rlvr_debug.checkout import ROOT
from rlvr_debug.grpo.objective import KL_ESTIMATORS, kl_estimate
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.study.params import load_params
from tests.in_process import script

SETTINGS = load_params(ROOT / "params.yaml").training
REFERENCE, POLICY, OLD = random_policies([0.5, 0.7])


def gradient(of: Tensor, logits: Tensor) -> Tensor:
    [found] = torch.autograd.grad(of, logits)
    return found


def leaf() -> Tensor:
    """Logits of POLICY."""
    return POLICY.clone().requires_grad_()


def test_the_kl_and_its_gradient_are_those_of_the_textbook() -> None:
    logits = leaf()
    policy = torch.distributions.Categorical(logits=logits)
    exact = torch.distributions.kl_divergence(
        policy, torch.distributions.Categorical(logits=REFERENCE)
    )
    assert torch.allclose(kl(POLICY, REFERENCE), exact)
    assert torch.allclose(kl_gradient(POLICY, REFERENCE), gradient(exact.sum(), logits))


@pytest.mark.parametrize("aggregation", ["grpo", "bnpo", "dr_grpo", "dapo"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_a_term_of_the_loss_has_the_gradient_of_its_expectation(
    estimator: Any, weighted: bool, aggregation: Any
) -> None:
    settings = replace(
        SETTINGS,
        kl_estimator=estimator,
        use_bias_correction_kl=weighted,
        aggregation=aggregation,
        kl_beta=0.0,  # the term is taken at 1
    )
    logits = leaf()
    logprobs = logits.log_softmax(-1)
    values = kl_estimate(logprobs, REFERENCE, estimator)
    tokens = logprobs.exp() if weighted else OLD.exp()
    expected = gradient((tokens * values).sum(), logits)
    found = term_gradient(POLICY, OLD, REFERENCE, settings, Stages())
    assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_a_penalty_on_the_reward_has_the_gradient_of_a_score_function(
    estimator: Any, weighted: bool
) -> None:
    settings = replace(SETTINGS, kl_estimator=estimator, kl_place="reward")
    logits = leaf()
    logprobs = logits.log_softmax(-1)
    penalty = kl_estimate(OLD, REFERENCE, estimator)
    score = logprobs.exp() if weighted else OLD.exp() * logprobs
    expected = gradient((score * penalty).sum(), logits)
    found = term_gradient(POLICY, OLD, REFERENCE, settings, Stages(), weighted=weighted)
    assert torch.allclose(found, expected, atol=1e-12)


def test_the_formula_is_right_one_way_only() -> None:
    found = {(d.estimator, d.distance): d for d in directions([0.1, 5.0])}
    for distance in (0.1, 5.0):
        for name in ("k1", "k3"):
            each = found[name, distance]
            assert each.right == pytest.approx(each.kl, rel=1e-9)
            assert each.reversed != pytest.approx(each.kl, rel=1e-3)
        assert found["k2", distance].right == found["k2", distance].reversed
    assert found["k3", 5.0].reversed > 5 * found["k3", 5.0].kl


def test_the_result_of_arxiv_2506_09477() -> None:
    on_policy = {
        t.estimator: t for t in terms(0.5, 0.0, SETTINGS) if t.place == "loss" and not t.weighted
    }
    assert on_policy["k1"].gradient.cosine == 0
    assert on_policy["k2"].gradient.relative_error < 1e-9
    assert on_policy["k3"].exchanged.relative_error < 1e-9  # of KL(reference || policy)
    assert on_policy["k3"].gradient.relative_error > 0.1


@pytest.mark.parametrize("name", ["verify_kl_direction", "verify_kl_importance_sampling"])
def test_the_scripts_print_the_reports(name: str) -> None:
    done = script(f"scripts/{name}.py")
    report = {
        "verify_kl_direction": direction_report([0.1, 1.0, 5.0]),
        "verify_kl_importance_sampling": importance_sampling_report(0.5, 0.3, SETTINGS),
    }
    assert (done.returncode, done.stdout) == (0, report[name] + "\n")
