"""Runs with LoRA save their adapter and nothing else, and are judged with it on the base model."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare
from rlvr_debug.errors import InputError
from rlvr_debug.evaluation import evaluated
from rlvr_debug.files import read_json, write_json
from rlvr_debug.grpo.policy import build_policy
from rlvr_debug.jobs import Evaluation, Sampling
from rlvr_debug.models.base_model import (
    adapter_of,
    link_adapter,
    load_model,
    load_weights,
    read_tensors,
    save_weights,
    scaling_of,
    trained_weights,
)
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers import Job
from rlvr_debug.trainers.own.training import train_run
from rlvr_debug.trainers.program import Program
from rlvr_debug.trainers.recording import train_with_program
from tests.small import random_reward

pytest.importorskip("peft", reason="peft is not installed: no LoRA")

TINY = ROOT / "models" / "tiny"
PARAMS = load_params(ROOT / "params.yaml")
ENVIRONMENT = {**PARAMS.settings("musique"), "max_new_tokens": 16}
RUN = random_reward(lora_r=4, lora_alpha=12)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare("musique", {**PARAMS.data_settings("musique"), "rows": 40, "heldout": 4}, folder)
    return folder


@pytest.fixture(scope="module")
def saved(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with an adapter, not to be changed."""
    out = tmp_path_factory.mktemp("run")
    train_run(Job(RUN, ENVIRONMENT, TINY, data / "train.jsonl", out, PARAMS.diagnostics))
    return out


def judged(weights: Path, data: Path) -> Any:
    rows = data / "heldout.jsonl"
    return evaluated(Evaluation("musique", ENVIRONMENT, TINY, weights, rows, 1.0, 0, Sampling()))


def test_a_run_with_an_adapter_saves_the_adapter_alone_and_once(saved: Path) -> None:
    weights, adapter = saved / "model.safetensors", saved / "adapter"
    assert all(".lora_" in name for name in read_tensors(weights))
    assert weights.samefile(adapter / "adapter_model.safetensors")
    assert adapter_of(weights) == adapter
    assert adapter_of(TINY / "model.safetensors") is None
    assert weights.stat().st_size < (TINY / "model.safetensors").stat().st_size / 10


def test_a_run_says_which_kernels_computed_it(saved: Path) -> None:
    """Its bytes are those of these kernels: on another processor jobs may take others."""
    kernels = read_json(saved / "kernels.json")
    assert kernels["aten"] == torch.backends.cpu.get_cpu_capability()
    assert kernels["ONEDNN_MAX_CPU_ISA"] == os.environ.get("ONEDNN_MAX_CPU_ISA")
    assert (kernels["torch"], kernels["device"]) == (torch.__version__, "cpu")


def test_the_whole_weights_of_an_adapter_are_the_policy_s_and_peft_s() -> None:
    from peft import PeftModel

    policy = build_policy(load_model(TINY, "sdpa"), None, RUN.training, 0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.trained:
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    adapter = policy.adapter_state()
    assert adapter is not None
    expected, base = policy.weights(), load_weights(TINY / "model.safetensors")
    whole = adapter.on(base)
    # bit for bit: evaluation has the weights that the sampler of the training had
    assert whole.keys() == expected.keys()
    assert all(torch.equal(whole[name], expected[name]) for name in expected)
    assert not all(torch.equal(expected[name], base[name]) for name in base)
    merged = policy.adapter.merge_and_unload()
    assert isinstance(policy.adapter, PeftModel)
    for name, tensor in merged.state_dict().items():
        assert torch.allclose(tensor, expected[name], atol=1e-6)


def test_an_adapter_is_judged_as_the_merged_weights_of_an_older_run(
    saved: Path, data: Path, tmp_path: Path
) -> None:
    """Before, a run had the whole model beside the adapter."""
    older = tmp_path / "older"
    shutil.copytree(saved / "adapter", older / "adapter")
    merged = trained_weights(saved / "model.safetensors", TINY)
    save_weights(merged, older / "model.safetensors")
    assert adapter_of(older / "model.safetensors") is None
    found = judged(saved / "model.safetensors", data)
    assert found == judged(older / "model.safetensors", data)
    assert found != judged(TINY / "model.safetensors", data)


def test_a_disk_without_links_gets_a_copy(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    shutil.copytree(saved / "adapter", tmp_path / "adapter")
    monkeypatch.setattr("os.link", refuse)
    link_adapter(tmp_path)
    copy, whole = (folder / "model.safetensors" for folder in (tmp_path, saved))
    assert copy.read_bytes() == whole.read_bytes()


def test_weights_of_an_adapter_on_another_model_are_one_line(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "run")
    other = tmp_path / "model"
    shutil.copytree(TINY, other)
    base = load_weights(TINY / "model.safetensors")
    gate = "model.layers.0.mlp.gate_proj.weight"
    for weights, said in (
        ({n: t for n, t in base.items() if n != gate}, "matches no module of the base model"),
        ({**base, gate: base[gate][:8]}, r"is for \(256, 128\), expected \(8, 128\)"),
    ):
        save_weights(weights, other / "model.safetensors")
        file = tmp_path / "run" / "model.safetensors"
        with pytest.raises(InputError, match=f"^{file}: adapter: tensor .* {said}"):
            trained_weights(file, other)
    (tmp_path / "run" / "adapter" / "adapter_config.json").unlink()
    with pytest.raises(InputError, match=r"adapter_config.json"):
        trained_weights(file, TINY)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"use_dora": True}, "use_dora True"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern {'q_proj': 8}"),
        ({"bias": "all"}, "bias 'all'"),
        ({"peft_type": "IA3"}, "'IA3'"),
    ],
)
def test_an_adapter_that_does_more_than_add_is_not_taken_for_one_that_adds(
    saved: Path, change: dict[str, Any], said: str
) -> None:
    config = read_json(saved / "adapter" / "adapter_config.json")
    assert scaling_of(config) == 3.0
    with pytest.raises(
        InputError, match=f"^adapter_config.json: found {said}, expected plain LoRA$"
    ):
        scaling_of({**config, **change})


def test_a_program_s_adapter_is_kept_as_it_is_where_it_only_adds(
    saved: Path, data: Path, tmp_path: Path
) -> None:
    given, out = tmp_path / "adapter", tmp_path / "run"
    shutil.copytree(saved / "adapter", given)
    run = replace(RUN, options={"adapter": str(given)})
    program = Program((sys.executable, str(ROOT / "tests" / "programs" / "misbehaving.py")), 20)
    job = Job(run, ENVIRONMENT, TINY, data / "train.jsonl", out)
    train_with_program(job, program)
    assert adapter_of(out / "model.safetensors") == out / "adapter"
    whole = trained_weights(out / "model.safetensors", TINY)
    expected = trained_weights(saved / "model.safetensors", TINY)
    assert all(torch.equal(whole[name], tensor) for name, tensor in expected.items())
    refused = {**read_json(given / "adapter_config.json"), "use_rslora": True}
    write_json(given / "adapter_config.json", refused)
    with pytest.raises(InputError, match="found use_rslora True, expected plain LoRA"):
        train_with_program(job, program)
