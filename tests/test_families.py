"""Models of every family that we train: against transformers, from a folder to a trained and judged model; others are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare
from rlvr_debug.errors import InputError
from rlvr_debug.evaluation import evaluate_model
from rlvr_debug.files import read_json, read_jsonl
from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.jobs import Evaluation, Sampling
from rlvr_debug.models.adapters import trained_weights
from rlvr_debug.models.architectures import FAMILIES, Architecture
from rlvr_debug.models.base_model import load_model, load_weights
from rlvr_debug.sampling.base import Request
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.serving.choose import base_sampler
from rlvr_debug.study.arms import runs
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers.base import Job, Run
from rlvr_debug.trainers.own.training import train_run
from tests.families import MODELS, save_family

PARAMS = load_params(ROOT / "params.yaml")
RandomModel = Callable[..., Any]
family = pytest.mark.parametrize("name", MODELS)


def test_a_model_of_every_family_is_among_those_that_are_tested() -> None:
    assert {told["model_type"] for told in MODELS.values()} == FAMILIES.keys()


@family
def test_trainer_and_sampler_say_what_transformers_says(
    random_model: RandomModel, tmp_path: Path, name: str
) -> None:
    save_family(tmp_path, name, random_model)
    oracle = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ours = load_model(tmp_path, "sdpa")
    assert type(ours) is type(oracle)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 256, (3, 90), generator=generator)
    everything = torch.ones_like(ids)
    with torch.no_grad():
        expected = oracle(ids).logits
        assert torch.equal(ours(ids).logits, expected)
        chosen = expected.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
        trained = token_logprobs(ours, ids, everything, everything)[:, 1:]
    assert torch.allclose(trained, chosen, rtol=0, atol=1e-5)
    # read at once, and read token by token behind a cache
    sampler = base_sampler(tmp_path, Chat(tmp_path))
    assert torch.allclose(torch.tensor(sampler.logprobs(ids.tolist())), chosen, rtol=0, atol=1e-5)
    prompt = ids[0, :40].tolist()
    [sample] = sampler.sample(
        [Request(0, prompt, None)], temperature=1.0, max_new_tokens=40, seed=0
    )
    [whole] = sampler.logprobs([prompt + sample.ids])
    step_by_step = torch.tensor(sample.logprobs)
    assert torch.allclose(step_by_step, torch.tensor(whole[39:]), rtol=0, atol=1e-5)


@family
@pytest.mark.parametrize("lora_r", [0, 4])
def test_a_family_is_trained_and_judged_from_end_to_end(
    random_model: RandomModel, tmp_path: Path, name: str, lora_r: int
) -> None:
    folder, out = tmp_path / "model", tmp_path / "out"
    save_family(folder, name, random_model)
    settings = {**PARAMS.data_settings("gsm8k"), "rows": 40, "heldout": 4}
    prepare("gsm8k", settings, tmp_path / "data")
    environment = {**PARAMS.settings("gsm8k"), "max_new_tokens": 8}
    rows = tmp_path / "data" / "train.jsonl"
    run = _run(lora_r=lora_r)
    train_run(Job(run, environment, folder, rows, out, PARAMS.diagnostics))
    metrics = [row for _, row in read_jsonl(out / "metrics.jsonl")]
    assert len(metrics) == run.training.steps
    for row in metrics:
        # the trainer trains on what the sampler said, after updates too
        assert row["sampler_gap/max_abs"] < 1e-4
        assert row["grad_norm"] > 0
    job = Evaluation(
        "gsm8k",
        environment,
        folder,
        out / "model.safetensors",
        tmp_path / "data" / "heldout.jsonl",
        1.0,
        0,
        Sampling(),
    )
    evaluate_model(job, tmp_path / "judged.json")
    assert read_json(tmp_path / "judged.json")["rows"] == 4
    before = load_weights(folder / "model.safetensors")
    after = trained_weights(out / "model.safetensors", folder)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    # Qwen3's norms of heads are among all weights, and in no adapter
    assert moved == {name for name in before if not lora_r or name.endswith("_proj.weight")}


def _run(**training: Any) -> Run:
    # whatever the model says, some of it earns more than the rest
    found = next(run for run in runs(PARAMS) if run.arm == "random-reward")
    small: dict[str, Any] = {
        "steps": 2,
        "prompts_per_step": 2,
        "group_size": 4,
        "num_iterations": 1,
    }
    small |= {"learning_rate": 1e-2, "warmup_steps": 0}
    changed = replace(found.training, **{**small, **training})
    return replace(found, environment="gsm8k", training=changed)


# --- what is refused

KNOWN = "llama, qwen2, qwen3"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another family": (
        {"model_type": "gemma3"},
        f"model_type is 'gemma3', expected one of {KNOWN}",
    ),
    "no family": ({"model_type": None}, f"model_type is 'None', expected one of {KNOWN}"),
    "sliding window": (
        {"use_sliding_window": True},
        "layer_types is 'sliding_attention', expected full_attention",
    ),
    "some layers sliding": (
        {"layer_types": ["full_attention", "sliding_attention"]},
        "layer_types is 'sliding_attention', expected full_attention",
    ),
    "other positions": (
        {"rope_parameters": None, "rope_scaling": {"type": "yarn", "factor": 4.0}},
        "rope_type is 'yarn', expected default or llama3",
    ),
    "another gate": ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected silu"),
}


@pytest.mark.parametrize(("change", "said"), REFUSED.values(), ids=REFUSED)
def test_other_architectures_are_refused_in_one_line(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "models" / "tiny", folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**read_json(file), **change}))
    for load in (lambda: load_model(folder, "sdpa"), lambda: base_sampler(folder, Chat(folder))):
        with pytest.raises(InputError) as caught:
            load()
        assert str(caught.value).endswith(said)
    # before anything of a study runs
    overlay = tmp_path / "mine.yaml"
    overlay.write_text(json.dumps({"study": "mine", "base_model": str(folder)}))
    with pytest.raises(InputError) as caught:
        load_params(ROOT / "params.yaml", overlay)
    assert str(caught.value) == f"{overlay}: key 'base_model': {folder}/config.json: {said}"


def test_a_config_without_its_sizes_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^here: no key 'hidden_size', expected its number$"):
        Architecture.of({"model_type": "llama"}, "here")
    with pytest.raises(InputError, match=r"^config.json: expected an object"):
        Architecture.of([])  # type: ignore[arg-type]
