"""TRL's GRPOTrainer as the case: the real trainer, two small steps, and what is recorded of it."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import get_json_schema

from rlvr_debug.blocks import checked, told
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Environment
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_jsonl, read_yaml
from rlvr_debug.grpo.settings import DiagnosticSettings, TrainingSettings
from rlvr_debug.models.base_model import load_weights
from rlvr_debug.sampling.base import Request
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.generate import base_sampler
from rlvr_debug.study.arms import arms, runs, unmapped
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers import Job, Run, load_trainer
from rlvr_debug.trainers import trl as trl_config
from rlvr_debug.trainers.protocol import Asked, checked_metrics, checked_rollouts, checked_weights
from rlvr_debug.trainers.trl import program as trl_program
from rlvr_debug.trainers.trl.callback import RunRecorder
from rlvr_debug.trainers.trl.program import environment_class
from rlvr_debug.venvs import build_venv
from tests.families import OTHERS, save_family
from tests.small import ROWS
from tests.study_file import refused

CASES = read_yaml(Path(__file__).with_suffix(".yaml"))

trl = pytest.importorskip("trl", reason="trl is not installed: no trainer of TRL's to run")
datasets = pytest.importorskip("datasets", reason="datasets comes with trl")

TINY = ROOT / "models" / "tiny"
OVERLAY = ROOT / "studies" / "trl.yaml"
PARAMS = load_params(ROOT / "params.yaml", OVERLAY)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows")
    prepare("musique", {**PARAMS.data_settings("musique"), "rows": 120, "heldout": 8}, path)
    return path / "train.jsonl"


def control(**training: Any) -> Run:
    run = next(run for run in runs(PARAMS) if run.arm == "control")
    small = {"steps": 2, "prompts_per_step": 4, "group_size": 4, "warmup_steps": 0}
    once = {**small, "num_iterations": 1, **training}
    return replace(run, training=replace(run.training, **once))


def train(run: Run, rows: Path, out: Path, model: Path = TINY, **settings: Any) -> list[Any]:
    """Returns the rows of metrics.jsonl."""
    out.mkdir()
    environment = {**PARAMS.settings(run.environment), **settings}
    told = Asked(run, environment, str(model), str(rows), str(out), str(out), 1, 0, 1)
    trl_program.train(told)
    return checked_metrics(out / "metrics.jsonl", run.training.steps)


@pytest.fixture(scope="module")
def trained(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trl") / "out"
    train(control(), rows, out)
    return out


def test_a_healthy_run_of_trl_is_recorded_as_healthy(trained: Path) -> None:
    rows = checked_metrics(trained / "metrics.jsonl", 2)
    for row in rows:
        assert row["trainer_reward"] == pytest.approx(row["reward"], abs=1e-6)
        assert row["trained_tokens"] == row["sampled_tokens"] > 0
        assert row["weights/update_ratio"] == pytest.approx(1, abs=1e-3)
        assert row["weights/update_error"] < 1e-3
        assert row["tools/failure_frequency"] == 0
        assert row["tools/call_frequency"] > 0
    assert rows[0]["kl"] == 0
    assert rows[0]["reward"] > 0
    base = load_weights(TINY / "model.safetensors")
    assert any(not torch.equal(w, base[n]) for n, w in checked_weights(trained, TINY).items())


@pytest.mark.parametrize("name", OTHERS)
def test_trl_trains_an_architecture_that_our_own_sampler_does_not_read(
    name: str, random_model: Callable[..., Any], tmp_path: Path
) -> None:
    """And the trained weights are judged by the rollouts that transformers generates."""
    model, out = tmp_path / "model", tmp_path / "out"
    save_family(model, name, random_model)
    prepare("gsm8k", {**PARAMS.data_settings("gsm8k"), "rows": 40, "heldout": 4}, tmp_path)
    run = control(prompts_per_step=2, steps=1)
    run = replace(run, environment="gsm8k", faults=("random-reward",))
    [row] = train(run, tmp_path / "train.jsonl", out, model, max_new_tokens=8)
    assert row["grad_norm"] > 0
    saved = checked_weights(out, model)
    [before, after] = [load_weights(f / "model.safetensors") for f in (model, out)]
    assert {n for n in before if torch.equal(before[n], after[n])} == set()
    sampler = base_sampler(model, Chat(model), out / "model.safetensors")
    asked = [Request(0, [5, 9, 2], None)]
    [sample] = sampler.sample(asked, temperature=1.0, max_new_tokens=8, seed=0)
    oracle = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    oracle.load_state_dict(saved, strict=False)
    ids = torch.tensor([[5, 9, 2, *sample.ids]])
    with torch.no_grad():
        expected = oracle(ids).logits.log_softmax(-1)[0, 2:-1].gather(1, ids[0, 3:, None])[:, 0]
    assert torch.allclose(torch.tensor(sample.logprobs), expected, atol=1e-4)


def test_what_trl_sampled_and_trained_on_is_recorded_token_by_token_after_the_prompts_of_evaluation(
    trained: Path, rows: Path
) -> None:
    found = checked_rollouts(trained / "rollouts.jsonl")
    assert len(found) == 2 * 16
    first = [row["advantage"] for row in found[:16]]
    assert torch.tensor(first).view(4, 4).mean(1).abs().max() < 1e-4
    assert any(first)
    chat, environment = Chat(TINY), built("musique")
    system = environment.messages(ROWS[0])[0]
    questions = {row["id"]: row["question"] for _, row in read_jsonl(rows)}
    for row in found:
        assert row["loss"] == row["sampled"]
        messages = [system, {"role": "user", "content": questions[row["row"]]}]
        start = row["sampled"].index(1)
        assert row["ids"][:start] == chat.prompt(messages, environment.tools)


def test_a_user_s_reward_function_is_trained_on_and_an_adapter_is_merged_for_evaluation(
    rows: Path, tmp_path: Path
) -> None:
    faults = ("examples/trl_rewards.py:whole_conversation",)
    run = replace(control(steps=1, lora_r=2, learning_rate=1e-2), faults=faults)
    [row] = train(run, rows, tmp_path / "out")
    assert row["trainer_reward"] * 16 == round(row["trainer_reward"] * 16)  # 0 or 1 each
    assert abs(row["trainer_reward"] - row["reward"]) > 1e-3  # the environment's
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").exists()
    base = load_weights(TINY / "model.safetensors")
    found, name = checked_weights(tmp_path / "out", TINY), "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(found[name], base[name])


def test_the_recorder_serves_a_script_that_knows_nothing_of_ours(tmp_path: Path) -> None:
    def length(completions: list[Any], **_: Any) -> list[float]:
        return [float(len(completion)) for completion in completions]

    recorder = RunRecorder(tmp_path / "run")
    trainer = trl.GRPOTrainer(
        model=str(TINY),
        reward_funcs=[recorder.watched(length)],
        args=trl.GRPOConfig(
            output_dir=str(tmp_path / "trl"),
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            max_steps=2,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=8,
            logging_steps=1,
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": "a"}, {"prompt": "b"}]),
        processing_class=Chat(TINY).tokenizer,
        callbacks=[recorder],
    )
    recorder.attach(trainer)
    trainer.train()
    rows = checked_metrics(tmp_path / "run" / "metrics.jsonl", 2)
    assert all(row["trained_tokens"] == row["sampled_tokens"] > 0 for row in rows)
    assert all(row["weights/moved"] > 0 for row in rows)


# --- settings


def built(environment: str) -> Environment:
    return build_environment(environment, PARAMS.settings(environment))


def config_of(folder: Path, told: dict[str, Any]) -> Any:
    return trl.GRPOConfig(output_dir=str(folder), use_cpu=True, **told)


def test_every_setting_is_given_to_trl_or_refused() -> None:
    """A setting that TRL would not hear of would make an intervention that changes nothing."""
    by_hand = {"steps", "prompts_per_step", "aggregation", "delta", "lr_scheduler_type"}
    elsewhere = {"lora_r", "lora_alpha", "attn_implementation"}
    without_effect = {"save_steps", "logprobs_chunk"}
    known = {*trl_config.FIELDS.same, *trl_config.FIELDS.renamed, *trl_config.FIELDS.fixed}
    names = {field.name for field in fields(TrainingSettings)}
    assert known | by_hand | elsewhere | without_effect == names


@pytest.mark.parametrize("environment", ["musique", "gsm8k"])
def test_trl_takes_all_that_it_is_told(environment: str, tmp_path: Path) -> None:
    told = trl_config.config_of(control().training, built(environment), 24)
    assert set(told) <= trl_config.FIELDS.taken
    config = config_of(tmp_path, told)
    assert config.beta == PARAMS.training.kl_beta
    assert config.max_steps == 2
    assert config.generation_batch_size == 16


def test_a_batch_that_trl_cannot_cut_is_refused() -> None:
    said = "gradient_accumulation_steps is 3, but with trainer trl it must divide"
    training = control(gradient_accumulation_steps=3).training
    with pytest.raises(InputError, match=said):
        trl_config.config_of(training, built("gsm8k"), 24)


@pytest.mark.parametrize("environment", ["musique", "calculator"])
def test_trl_shows_the_model_the_same_tools(environment: str) -> None:
    tools = built(environment).tools
    instance = environment_class(built(environment), [])()
    schemas = [get_json_schema(getattr(instance, t["function"]["name"])) for t in tools]
    assert json.dumps(schemas) == json.dumps(tools)


# --- arms


def study(**changes: Any) -> Params:
    return checked(Params, {**told(PARAMS), **changes}, "params")


def test_what_trl_has_no_counterpart_for_is_said_and_not_run() -> None:
    kl = {
        "k1": {"training": {"kl_estimator": "k1"}},
        "beta-0": {"training": {"kl_beta": 0.0}},
    }
    hypotheses = {
        "hidden-context": {"arms": {"attention-mask": {"swap": ["attention_mask"]}}},
        "kl-penalty": {"arms": kl},
    }
    params = study(hypotheses=hypotheses)
    names = {arm.arm for arm in arms(params)}
    assert names & {"beta-0", "attention-mask", "k1", "own-scores-alone"} == {"beta-0"}
    assert unmapped(params) == {
        "hidden-context": "trainer trl has no counterpart for attention-mask: stage attention_mask",
        "kl-penalty": "trainer trl has no counterpart for k1: kl_estimator k1",
    }


MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def corrections(**options: Any) -> Params:
    """Return a study with an arm for each of TRL's corrections for a sampler."""
    kept = {
        mode.replace("_", "-"): {
            "training": {"importance_sampling_cap": 2.0},
            "options": {"vllm_importance_sampling_mode": mode},
        }
        for mode in MODES
    }
    hypotheses = {"sampler-mismatch": {"arms": kept}}
    return study(hypotheses=hypotheses, options={"max_completion_length": 256, **options})


def test_trl_s_corrections_for_a_sampler_are_no_arms_where_vllm_does_not_sample() -> None:
    without = corrections()
    assert {arm.hypothesis for arm in arms(without)} == {""}
    assert "token-mask: importance_sampling_cap 2.0" in unmapped(without)["sampler-mismatch"]


def test_an_arm_s_correction_is_trl_s_whatever_the_case_says_of_it(tmp_path: Path) -> None:
    params = corrections(use_vllm=True, vllm_importance_sampling_correction=False)
    assert "sampler-mismatch" not in unmapped(params)
    repairs = {arm.arm for arm in arms(params) if arm.design == "repair"}
    assert repairs == {mode.replace("_", "-") for mode in MODES}
    made = {
        run.arm: config_of(tmp_path, trl_config.options_of(run, built("musique"), 24))
        for run in runs(params)
        if run.arm in ("case", *repairs)
    }
    assert not made["case"].vllm_importance_sampling_correction
    for mode in MODES:
        arm = made[mode.replace("_", "-")]
        assert arm.vllm_importance_sampling_correction
        assert arm.vllm_importance_sampling_mode == mode
        assert arm.vllm_importance_sampling_clip_max == 2.0
        assert arm.vllm_importance_sampling_clip_min is None


def test_a_cap_alone_is_our_correction_and_none_leaves_trl_s_own() -> None:
    plain = replace(control(), options={"use_vllm": True})
    capped = replace(control(importance_sampling_cap=2.0), options={"use_vllm": True})
    own, ours = (trl_config.options_of(run, built("musique"), 24) for run in (plain, capped))
    assert not any("importance_sampling_m" in name for name in own)
    assert ours["vllm_importance_sampling_mode"] == "token_truncate"


def test_a_reward_function_is_a_defect_of_the_score_stage_and_options_are_planted_too() -> None:
    place = "examples/trl_rewards.py:judged_once"
    case = {"faults": [], "reward": place, "options": {"max_completion_length": 8}}
    by_name = {arm.arm: arm for arm in arms(study(case="mine", cases={"mine": case}))}
    faults = {name: arm.faults for name, arm in by_name.items()}
    assert faults["case"] == faults["own-scores-alone"] == (place,)
    assert faults["own-scores"] == faults["completion-length-alone"] == ()
    lengths = {name: arm.options["max_completion_length"] for name, arm in by_name.items()}
    assert lengths["case"] == lengths["completion-length-alone"] == 8
    assert lengths["control"] == lengths["completion-length"] == 256


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({"faults": ["stale-sampler"]}, "stage sync, which trainer trl does not support"),
        ({"faults": [], "training": {"kl_estimator": "k1"}}, "kl_estimator k1"),
        # of an overlay that says nothing of cases, too: the shipped one's is our own trainer's
        (None, "expected a case of your own: `case` and `cases`"),
    ],
)
def test_a_case_that_trl_cannot_be_is_refused(case: Any, expected: str, tmp_path: Path) -> None:
    given = {"case": "mine", "cases": {"mine": case}} if case else {}
    assert expected in refused(tmp_path, trainer="trl", **given)


@pytest.mark.parametrize(("changes", "expected"), CASES["a trainer that cannot be run is one line"])
def test_a_trainer_that_cannot_be_run_is_one_line(
    changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    assert expected in refused(tmp_path, **changes)


def test_the_place_of_a_user_s_reward_function_is_checked() -> None:
    with pytest.raises(InputError, match="no such file, expected one with the reward function 'f'"):
        trl_program.user_function("examples/nothing.py:f")
    with pytest.raises(InputError, match="no function 'f', expected a reward function"):
        trl_program.user_function("examples/trl_rewards.py:f")


@pytest.mark.releases
def test_trl_runs_in_an_environment_of_its_own(rows: Path, tmp_path: Path) -> None:
    try:
        build_venv("trl")
    except InputError as error:
        if "could not be installed" not in str(error):
            raise
        pytest.skip(str(error))
    recorded, settings = DiagnosticSettings(1, 2), PARAMS.settings("musique")
    job = Job(control(steps=1), settings, TINY, rows, tmp_path, recorded, told(PARAMS.command))
    load_trainer("trl").train(job)
    [row] = [row for _, row in read_jsonl(tmp_path / "metrics.jsonl")]
    assert row["trainer_reward"] == pytest.approx(row["reward"], abs=1e-6)
    assert sum(1 for _ in read_jsonl(tmp_path / "rollouts.jsonl")) == 2
