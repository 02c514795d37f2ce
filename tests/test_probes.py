"""All probes: they pass on healthy trainers, each fails on its planted fault, none changes anything."""

from __future__ import annotations

import copy
import math
import runpy
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rlvr_debug.trainers.own.probe import case_subject

from rlvr_debug.causes import cause_of, hypothesis_names, variant_names
from rlvr_debug.checkout import ROOT
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.gsm8k.synthetic import synthetic_gsm8k
from rlvr_debug.environments.musique.synthetic import synthetic_musique
from rlvr_debug.files import read_json, write_jsonl
from rlvr_debug.grpo.policy import build_policy
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.probes import PROBES, Measurement, Subject, readable
from rlvr_debug.probes.first_update import case_batch
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.study.arms import runs
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers.base import Job, Run
from tests.probe_subjects import (
    DRAWS,
    Build,
    draw,
    failing,
    subject_of,
    with_faults,
    with_settings,
)
from tests.study_file import study_file

# which probes fail on which fault: all that are named, and no other
FAILS = {
    "adapter-lost-at-save": {"train-eval-equality"},
    "advantages-of-others": {"group-integrity"},
    "attention-from-loss-mask": {"context-sensitivity"},
    "empty-optimizer": {"weights-move"},
    "eos-not-trained": {"token-roles"},
    # near the reference the two divergences pull alike
    "kl-reversed": {"kl-estimator"},
    "kl-subtracted": {"kl-estimator", "kl-gradient"},
    # neither does its advantages' mean stay 0
    "leave-one-out-residue": {"advantage-scale", "group-integrity"},
    "per-micro-batch-denominator": {"micro-batch-invariance"},
    "prompt-without-tools": {"sequence-diff"},
    "random-reward": {"reward-audit", "train-eval-equality"},
    "ratio-blow-up": {"gradient-size"},
    "reply-limit-too-low": {"limits"},
    "stale-sampler": {"weight-sync"},
    "temperature-ignored": {"sampler-ratio"},
    # evaluation scores what the model wrote
    "tool-output-scored": {"reward-audit", "train-eval-equality"},
    "tool-tokens-trained": {"token-roles"},
    "tool-turn-rendered-alone": {"sequence-diff"},
}
# what a fault needs to act, beside a temperature other than 1
NEEDS: dict[str, dict[str, Any]] = {"per-micro-batch-denominator": {"aggregation": "dapo"}}
NAMES = {
    "advantage-scale",
    "context-sensitivity",
    "gradient-size",
    "group-integrity",
    "kl-estimator",
    "kl-gradient",
    "limits",
    "micro-batch-invariance",
    "reward-audit",
    "sampler-ratio",
    "sequence-diff",
    "token-roles",
    "train-eval-equality",
    "weight-sync",
    "weights-move",
}


@pytest.fixture(scope="module")
def draws(chat: Chat, talkative: Build) -> list[Subject]:
    return [draw(chat, talkative, seed) for seed in DRAWS]


def name_of(probe: Any) -> str:
    name: str = probe.__name__
    return name.replace("_", "-")


def planted(subject: Subject, fault: str) -> Subject:
    return with_settings(with_faults(subject, fault), **NEEDS.get(fault, {}))


def test_the_probes_have_the_names_that_hypotheses_refer_to(draws: list[Subject]) -> None:
    assert {probe(draws[0]).probe for probe in PROBES} == NAMES
    assert {name_of(probe) for probe in PROBES} == NAMES
    assert len(PROBES) == len(NAMES)


def test_every_fault_and_every_probe_is_in_the_table() -> None:
    assert set(FAILS) == set(variant_names())
    assert set().union(*FAILS.values()) == NAMES


HALVES = [0, pytest.param(1, marks=pytest.mark.heavy)]


@pytest.mark.parametrize(
    "seed", [*DRAWS[::2], *(pytest.param(s, marks=pytest.mark.heavy) for s in DRAWS[1::2])]
)
def test_every_probe_passes_on_the_healthy_trainer(draws: list[Subject], seed: int) -> None:
    for probe in PROBES:
        found = probe(draws[seed])
        assert found.passed, readable(found)
        assert all(map(math.isfinite, found.measured.values()))  # another would measure nothing


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("fault", variant_names())
def test_every_fault_fails_its_probes_on_every_draw(
    draws: list[Subject], fault: str, half: int
) -> None:
    probes = {name_of(probe): probe for probe in PROBES}
    for subject in draws[half::2]:
        for name in FAILS[fault]:
            found = probes[name](planted(subject, fault))
            assert not found.passed, readable(found)


@pytest.mark.parametrize("fault", variant_names())
def test_a_fault_fails_no_other_probe(draws: list[Subject], fault: str) -> None:
    # a draw of its own for each
    subject = draws[variant_names().index(fault)]
    assert failing(planted(subject, fault)) == FAILS[fault]


def test_the_probes_find_every_fault_of_a_case_with_several(draws: list[Subject]) -> None:
    faults = ("attention-from-loss-mask", "prompt-without-tools", "stale-sampler")
    expected = set().union(*(FAILS[fault] for fault in faults))
    assert failing(with_faults(draws[0], *faults)) == expected


# --- what a probe leaves behind


def state_of(subject: Subject) -> dict[str, Any]:
    """All that a probe could change. Tensors are copies."""
    policy = subject.policy
    reference = {} if policy.reference is None else policy.reference.state_dict()
    tensors = {
        **{f"model {n}": t for n, t in policy.model.state_dict().items()},
        **{f"reference {n}": t for n, t in reference.items()},
        **{f"sampler {n}": t for n, t in subject.sampler.weights().items()},
        **{
            f"gradient {n}": p.grad
            for n, p in policy.model.named_parameters()
            if p.grad is not None
        },
        "random": torch.get_rng_state(),
    }
    return {
        "tensors": {name: tensor.detach().clone() for name, tensor in tensors.items()},
        "trained": [n for n, p in policy.model.named_parameters() if p.requires_grad],
        "training": policy.model.training,
        "rollouts": copy.deepcopy([asdict(r) for r in subject.rollouts]),
    }


def assert_same(now: dict[str, Any], before: dict[str, Any]) -> None:
    a, b = now.pop("tensors"), before["tensors"]
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []
    assert now == {name: value for name, value in before.items() if name != "tensors"}


def adapted(subject: Subject, build: Build, **changes: Any) -> Subject:
    """The same trainer with an adapter."""
    settings: TrainingSettings = replace(subject.settings, lora_r=4, **changes)
    policy = build_policy(build(1), None, settings, 0)
    return replace(subject, policy=policy, settings=settings)


@pytest.mark.parametrize("kind", ["full", "adapter", "gradients"])
def test_a_probe_says_the_same_again_and_changes_nothing(
    chat: Chat, talkative: Build, kind: str
) -> None:
    subject = draw(chat, talkative, 0)
    if kind == "adapter":
        subject = adapted(subject, talkative)
    if kind == "gradients":
        for parameter in subject.policy.trained:
            parameter.grad = torch.ones_like(parameter)
    before = state_of(subject)
    for probe in PROBES:
        found = probe(subject)
        assert_same(state_of(subject), before)
        assert asdict(probe(subject)) == asdict(found)
    # nor with a faulty trainer, whose sync, optimizer or saving may do what they like
    failing(with_faults(subject, "stale-sampler", "empty-optimizer", "ratio-blow-up"))
    failing(with_faults(subject, "adapter-lost-at-save", "temperature-ignored"))
    assert_same(state_of(subject), before)


def test_a_model_whose_forward_was_replaced_is_probed_as_it_is(
    chat: Chat, talkative: Build
) -> None:
    # a copy of it would go on to run the original's weights
    subject = draw(chat, talkative, 0)
    original = subject.model.model.forward

    def forward(*given: Any, **named: Any) -> Any:
        return original(*given, **named)

    subject.model.model.forward = forward
    assert failing(subject) == set()
    assert failing(with_faults(subject, "stale-sampler")) == {"weight-sync"}


# --- what a case may be told


@pytest.mark.parametrize(
    "changes",
    [
        {"multi_objective_aggregation": "normalize_then_sum"},
        {"mask_truncated_completions": True},
        {"gradient_accumulation_steps": 4, "aggregation": "grpo"},
        {"gradient_accumulation_steps": 3, "aggregation": "dr_grpo"},
        {"importance_sampling_level": "sequence", "importance_sampling_cap": 2.0},
        {"kl_place": "reward", "kl_estimator": "k1"},
        {"kl_estimator": "k1", "use_bias_correction_kl": True},
        {"kl_beta": 0.0},
        {"scale_rewards": "batch", "warmup_steps": 5},
        {"scale_rewards": "none", "weight_decay": 0.1},
        {"max_grad_norm": 0.01, "learning_rate": 1e-6},
        {"logprobs_dtype": "float64", "logprobs_chunk": 3},
        {"bf16": True},
    ],
    ids=str,
)
def test_settings_of_a_healthy_trainer_fail_no_probe(
    draws: list[Subject], changes: dict[str, Any]
) -> None:
    assert failing(with_settings(draws[3], **changes)) == set()


def test_an_adapter_is_probed(chat: Chat, talkative: Build) -> None:
    subject = adapted(draw(chat, talkative, 0), talkative)
    assert failing(subject) == set()
    for fault in ("adapter-lost-at-save", "empty-optimizer", "stale-sampler"):
        assert failing(with_faults(subject, fault)) == FAILS[fault]


def test_a_trainer_without_tools_passes(chat: Chat, talkative: Build) -> None:
    environment = build_environment("gsm8k", {"max_new_tokens": 16, "weights": {"correct": 1.0}})
    rows = list(synthetic_gsm8k(3, steps={1: 1}, seed=0))
    subject = subject_of(chat, talkative, 1, environment, rows, 0)
    assert failing(subject) == {"reward-audit"}  # a random model solves nothing
    assert failing(with_faults(subject, "attention-from-loss-mask")) == {
        "reward-audit",
        "context-sensitivity",
    }


def test_a_batch_whose_replies_are_all_left_out_is_measured_and_fails(
    draws: list[Subject],
) -> None:
    cut = [replace(r, outcome="token_limit") for r in draws[0].rollouts]
    subject = with_settings(
        replace(draws[0], rollouts=cut),
        mask_truncated_completions=True,
        gradient_accumulation_steps=2,
        aggregation="grpo",
    )
    assert failing(subject) == {"limits", "weights-move"}


# --- a case of a study


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "train.jsonl"
    found = synthetic_musique(4, hops={2: 1}, paragraphs=6, same_relation=0, seed=0)
    write_jsonl(path, (row.to_json() for row in found))
    return path


def run_of(design: str, **changes: Any) -> tuple[Run, dict[str, Any]]:
    """A run of the default study, of four prompts, and its environment."""
    params = load_params(ROOT / "params.yaml")
    run = next(run for run in runs(params) if run.design == design)
    training = replace(run.training, prompts_per_step=4, **changes)
    return replace(run, training=training), params.settings(run.environment)


def test_the_default_case_fails_where_its_three_defects_are(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = run_of("case")
    study = study_file(tmp_path, load_params(ROOT / "params.yaml"), run, rows)
    options = ["--study", str(study), "--out", str(tmp_path / "probes.json")]
    monkeypatch.setattr(sys, "argv", ["probe.py", *options])
    monkeypatch.setattr(torch, "set_deterministic_debug_mode", lambda mode: None)
    runpy.run_path(str(ROOT / "scripts" / "probe.py"), run_name="probe")["main"]()
    found = read_json(tmp_path / "probes.json")
    assert found.keys() == NAMES
    failed = {name for name, measured in found.items() if not measured["passed"]}
    # four groups are too few to say what they earn
    assert failed - {"reward-audit", "advantage-scale"} == {"sequence-diff", "context-sensitivity"}
    printed = capsys.readouterr().out
    for name, measured in found.items():
        assert f"{name}: {'FAILS' if name in failed else 'passes'}\n" in printed
        assert f"    bound: {measured['bound']}\n    why: {measured['reason']}\n" in printed


def test_the_case_s_settings_are_those_that_are_probed(
    rows: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch, "set_deterministic_debug_mode", lambda mode: None)
    run, environment = run_of("control", lora_r=4, mask_truncated_completions=True)
    settings = {**environment, "max_new_tokens": 8}
    subject = case_subject(Job(run, settings, ROOT / "models" / "tiny", rows, tmp_path))
    assert subject.settings == run.training
    assert subject.policy.adapter is not None
    assert all(weight.shape[0] == 4 or weight.shape[1] == 4 for weight in subject.policy.trained)
    cut = [r.outcome == "token_limit" for r in subject.rollouts]
    assert any(cut)
    trained = case_batch(subject).loss.any(1).tolist()
    assert trained == [not each for each in cut]


def test_every_cause_with_a_fault_has_a_probe() -> None:
    assert {cause_of(fault) for fault in FAILS} >= {
        name for name in hypothesis_names() if name not in ("library-functionality", "multi-step")
    }


def test_a_measurement_is_printed_with_its_bound_and_reason() -> None:
    found = Measurement(
        "some-probe", {"error": 0.25, "longer_name": 2.0}, "below 1", "because", True
    )
    assert readable(found).splitlines() == [
        "some-probe: passes",
        "    error        0.25",
        "    longer_name  2",
        "    bound: below 1",
        "    why: because",
    ]
    assert readable(replace(found, passed=False)).startswith("some-probe: FAILS\n")
