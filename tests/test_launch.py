"""Trainings by accelerate's launcher: its own parser and DeepSpeed's read the configs, GPUs are told apart, and two
processes train through the workflow's rule."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_debug.blocks import told
from rlvr_debug.checkout import ROOT
from rlvr_debug.devices import (
    SEEN,
    VISIBLE,
    device_variables,
    launch,
    launch_command,
    narrowed,
    positions,
)
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, read_jsonl
from rlvr_debug.models.base_model import load_weights, trained_weights
from rlvr_debug.serving.vllm import vllm_variables
from rlvr_debug.study.params import load_params
from tests.study_file import refused
from tests.test_workflow import MINI, Project, copy

PARAMS = load_params(ROOT / "params.yaml")
FULL = load_params(ROOT / "params.yaml", ROOT / "studies" / "qwen2.5-7b.yaml")
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
NO_DEEPSPEED = find_spec("deepspeed") is None or shutil.which("g++") is None
needs_deepspeed = pytest.mark.skipif(
    NO_DEEPSPEED, reason="deepspeed or the compiler that it needs is missing"
)


# --- what accelerate and DeepSpeed read


def parsed(config: Path, processes: int) -> tuple[Any, Any]:
    """The launcher's arguments and the config, by accelerate's own parser and checks."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    command = launch_command(config, processes, ["scripts/train.py", "--run", "{}"])
    assert command[1:3] == ["-m", "accelerate.commands.launch"]
    args, read, _ = _validate_launch_command(launch_command_parser().parse_args(command[3:]))
    return args, read


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_accelerate_starts_what_it_is_told_whatever_the_config_says(config: Path) -> None:
    args, read = parsed(config, 3)
    assert read.num_processes == 2
    assert (args.num_processes, args.main_process_port) == (3, 0)
    assert (args.training_script, args.training_script_args) == (
        "scripts/train.py",
        ["--run", "{}"],
    )
    sharded = config.name == "zero3.yaml"
    assert (args.use_deepspeed, args.multi_gpu) == (sharded, not sharded)
    # precision comes from params.yaml
    assert args.mixed_precision == "no"


@needs_deepspeed
def test_deepspeed_reads_the_shipped_config_with_the_full_study_s_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from accelerate.utils import DeepSpeedPlugin
    from accelerate.utils.launch import prepare_deepspeed_cmd_env
    from deepspeed.runtime.config import DeepSpeedConfig

    args, read = parsed(ROOT / FULL.launch.config, FULL.launch.processes)
    args.deepspeed_fields_from_accelerate_config = ",".join(read.deepspeed_config)
    _, environment = prepare_deepspeed_cmd_env(args)
    for name, value in environment.items():
        if name.startswith("ACCELERATE"):
            monkeypatch.setenv(name, value)
    training = FULL.training
    parts = training.gradient_accumulation_steps
    plugin = DeepSpeedPlugin(
        gradient_accumulation_steps=parts, gradient_clipping=training.max_grad_norm
    )
    written = {**plugin.deepspeed_config, "gradient_clipping": training.max_grad_norm}
    # of one process, which is as many as there are here
    written |= {"train_micro_batch_size_per_gpu": 1, "train_batch_size": parts}
    config = DeepSpeedConfig({**written, "bf16": {"enabled": training.bf16}})
    assert config.zero_config.stage == 3
    assert config.gradient_accumulation_steps == parts
    assert config.gradient_clipping == training.max_grad_norm


# --- whose GPUs


@given(st.lists(st.integers(0, 15), min_size=1, max_size=8, unique=True), st.integers(0, 16))
def test_a_training_and_its_server_never_share_a_gpu(wanted: list[int], split: int) -> None:
    ours, theirs = wanted[:split], wanted[split:]
    if not (ours and theirs):
        return
    here, there = (",".join(map(str, part)) for part in (ours, theirs))
    seen = [f"GPU-{number}" for number in range(16)]
    for before in ({}, {VISIBLE: ",".join(seen)}):
        job = {**before, **narrowed(here, before)}
        # started by the job that the training is, and by one of its own
        for environ in (job, before):
            server = device_variables(there, environ)[VISIBLE].split(",")
            assert not set(server) & set(job[VISIBLE].split(","))
            names = seen if before else [str(number) for number in range(16)]
            assert server == [names[number] for number in theirs]


def test_a_job_that_sees_too_few_gpus_has_them_to_itself_or_says_so() -> None:
    # held-out evaluation on Slurm asks for one
    assert device_variables("3", {VISIBLE: "5"}) == {VISIBLE: "5"}
    with pytest.raises(
        InputError, match=r"^launch.devices: asks for 0,1,2, but CUDA_VISIBLE_DEVICES=5,6;"
    ):
        narrowed("0,1,2", {VISIBLE: "5,6"})


def test_without_devices_nothing_is_said_of_gpus() -> None:
    assert positions("") == []
    assert device_variables("", {VISIBLE: "5"}) == narrowed("", {VISIBLE: "5"}) == {}
    assert VISIBLE not in vllm_variables(told(PARAMS.vllm))


def test_the_full_study_s_server_has_the_gpu_that_training_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    job = narrowed(FULL.launch.devices, {})
    assert job == {VISIBLE: "0,1,2", SEEN: "all"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    assert vllm_variables(told(FULL.vllm))[VISIBLE] == "3"


def test_a_config_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.yaml: no such file, expected a config"):
        launch(tmp_path / "none.yaml", 2, "", ["train.py"])


# --- what params.yaml may say

ZERO3 = "configs/zero3.yaml"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"launch": {"processes": 2}}, "key 'launch.config' is missing, expected a config of accelerate with launch.processes and launch.devices"),
        ({"launch": {"devices": "0"}}, "key 'launch.config' is missing, expected a config of accelerate with launch.processes and launch.devices"),
        ({"launch": {"config": "configs/zero4.yaml"}}, "key 'launch.config' is 'configs/zero4.yaml', expected a file"),
        ({"launch": {"config": ZERO3, "processes": 2, "devices": "0,1,2"}}, "key 'launch.devices' is '0,1,2', expected 2, one for each of launch.processes"),
        ({"launch": {"config": ZERO3, "processes": 2, "devices": "1,1"}}, "key 'launch.devices' is '1,1', expected 2, one for each of launch.processes"),
        ({"launch": {"config": ZERO3, "processes": 3}}, "key 'launch.processes' is 3, expected a divisor of a batch's 64 rollouts in arm 'case'"),
        ({"launch": {"config": ZERO3, "processes": 2, "devices": "0,1"}, "sampler": "vllm", "vllm": {"devices": "1"}}, "key 'vllm.devices' has 1, which launch.devices has too, expected others"),
        ({"launch": {"config": ZERO3, "devices": "gpu0"}}, "key 'launch.devices' is text 'gpu0', expected numbers between commas"),
        ({"launch": {"proceses": 2}}, "unknown key 'launch.proceses': did you mean 'processes'?"),
        ({"launch": {"config": ZERO3}, "trainer": "trl", "case": "healthy"}, "key 'launch' is given, expected none with trainer trl"),
        ({"base_model": "Qwen/Qwen2.5-7B-Instruct"}, "key 'base_model' is 'Qwen/Qwen2.5-7B-Instruct', expected a folder with config.json, or owner/name@revision on the hub"),
        ({"base_model": "Qwen2.5-7B@main"}, "key 'base_model': base model 'Qwen2.5-7B@main': expected owner/name@revision, as on the hub, or a folder"),
        ({"base_models": {"gsm8k": "models/none"}}, "key 'base_models.gsm8k' is 'models/none', expected a folder with config.json, or owner/name@revision on the hub"),
        ({"base_models": {"gsm9k": "a/b@c"}}, "unknown key 'base_models.gsm9k': did you mean 'gsm8k'?"),
        ({"base_models": {"gsm8k": "Qwen/Qwen2.5-3B-Instruct@main"}, "sampler": "vllm", "vllm": {"tensor_parallel_size": 3}}, "key 'vllm.tensor_parallel_size' is 3, expected a divisor of the base model's 16 attention heads"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_launched_is_one_line_before_the_study(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    assert refused(tmp_path, **change) == said


# --- two processes through the rule

LAUNCHED = {
    **MINI,
    "launch": {"config": ZERO3, "processes": 2},
    "training": {**MINI["training"], "lora_r": 4, "bf16": True},
}
CASE = "results/runs/musique/case/0"


@pytest.fixture
def launched(tmp_path: Path) -> Callable[[dict[str, Any]], Project]:
    def project(values: dict[str, Any]) -> Project:
        made = copy(ROOT, tmp_path)
        shutil.copytree(ROOT / "configs", tmp_path / "configs")
        made.environment["DS_ACCELERATOR"] = "cpu"
        made.overlay(values)
        return made

    return project


@pytest.mark.heavy
@needs_deepspeed
def test_two_processes_train_on_shards_through_the_rule(
    launched: Callable[[dict[str, Any]], Project],
) -> None:
    project = launched(LAUNCHED)
    done = project.run("--", f"{CASE}/heldout.json")
    assert done.returncode == 0, done.stderr
    folder = project.study / CASE
    rows = [row for _, row in read_jsonl(folder / "metrics.jsonl")]
    assert [row["step"] for row in rows] == [1, 2]
    # single weights are not seen on shards
    assert not any(name.startswith("weights/") for name in rows[0])
    assert read_json(folder / "heldout.json")["rows"] == 8
    assert (folder / "adapter" / "adapter_model.safetensors").exists()
    base = load_weights(ROOT / "models" / "tiny" / "model.safetensors")
    tiny = ROOT / "models" / "tiny"
    assert trained_weights(folder / "model.safetensors", tiny).keys() == base.keys()


@pytest.mark.heavy
@needs_deepspeed
def test_what_a_launched_training_refuses_is_still_the_last_line(
    launched: Callable[[dict[str, Any]], Project],
) -> None:
    few = {**LAUNCHED, "training": {**LAUNCHED["training"], "prompts_per_step": 60}}
    done = launched(few).run("--", f"{CASE}/metrics.jsonl")
    assert done.returncode != 0
    assert (
        "training rows, expected at least training.prompts_per_step (60)"
        in (done.stderr.splitlines()[-1])
    )


@pytest.mark.heavy
def test_a_hub_that_cannot_be_reached_ends_a_study_with_one_line(
    launched: Callable[[dict[str, Any]], Project],
) -> None:
    project = launched({**MINI, "base_models": {"musique": "owner/model@main"}})
    project.environment |= {"HF_ENDPOINT": "http://127.0.0.1:9"}
    assert project.to_do()["fetch_model"] == 1
    done = project.run("--", f"{CASE}/metrics.jsonl")
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: base model 'owner/model@main' cannot be fetched (")
    assert not (project.root / ".models" / "owner--model-main" / "manifest.json").exists()


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["qwen2.5-7b", "qwen2.5-0.5b"])
def test_the_study_of_a_real_model_is_planned_without_a_network(
    launched: Callable[[dict[str, Any]], Project], name: str
) -> None:
    project = launched(MINI)
    (project.root / "mini.yaml").write_bytes((ROOT / "studies" / f"{name}.yaml").read_bytes())
    project.environment |= {"HF_ENDPOINT": "http://127.0.0.1:9"}
    project.study = project.root / "studies" / name
    jobs = project.to_do()
    params = load_params(ROOT / "params.yaml", ROOT / "studies" / f"{name}.yaml")
    models = {params.base_model, *params.base_models.values()}
    assert jobs["fetch_model"] == len(models)
    assert jobs["train"] == jobs["evaluate_run"] > 30
    assert not (project.study / "results").exists()
