"""Several real processes, on the CPU: what they compute together is what one computes."""

import os
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr_debug.checkout import ROOT
from rlvr_debug.environments.musique.rows import synthetic_musique
from rlvr_debug.files import read_jsonl, write_jsonl
from rlvr_debug.models.base_model import load_model, load_weights, trained_weights
from rlvr_debug.study.arms import runs
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers import Run
from tests.shared import free_port, ran
from tests.study_file import study_file

PARAMS = load_params(ROOT / "params.yaml")
MODEL = ROOT / "models" / "tiny"
# a norm of clipping that acts, and a rate that makes the weights' change no smaller than the gradient
SMALL = {
    "steps": 1,
    "prompts_per_step": 4,
    "group_size": 4,
    "learning_rate": 1.0,
    "warmup_steps": 0,
    "num_iterations": 1,
    "max_grad_norm": 0.1,
    "gradient_accumulation_steps": 2,
}

# DeepSpeed compiles its exchange of tensors on the CPU when it is first used
NO_DEEPSPEED = find_spec("deepspeed") is None or shutil.which("g++") is None

pytestmark = pytest.mark.heavy


def control(**changes: Any) -> Run:
    found = next(run for run in runs(PARAMS) if run.arm == "control")
    return replace(found, training=replace(found.training, **{**SMALL, **changes}))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    shares = {2: 0.5, 3: 0.5}
    made = synthetic_musique(16, hops=shares, paragraphs=12, same_relation=0.5, seed=3)
    write_jsonl(path, (row.to_json() for row in made))
    return path


# how two processes are started: DDP as torchrun does it, since without a GPU accelerate's launcher
# asks for MPI, and ZeRO-3 with the config that is shipped
LAUNCHERS = {
    "alone": [],
    "ddp": ["-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port={port}", "--"],
    "zero3": [
        *(
            "-m",
            "accelerate.commands.launch",
            "--config_file",
            str(ROOT / "configs" / "zero3.yaml"),
        ),
        *("--num_processes", "2", "--main_process_port", "{port}"),
    ],
}
CPU = {"alone": {}, "ddp": {"ACCELERATE_USE_CPU": "true"}, "zero3": {"DS_ACCELERATOR": "cpu"}}
needs_deepspeed = pytest.mark.skipif(
    NO_DEEPSPEED, reason="deepspeed or the compiler that it needs is missing"
)


def train(launcher: str, run: Run, rows: Path, out: Path, *, descent: bool) -> Path:
    """One run, by scripts/train.py or by ranks.py. Returns `out`."""
    command = [part.format(port=free_port()) for part in LAUNCHERS[launcher]]
    command.append(str(ROOT / ("tests/ranks.py" if descent else "scripts/train.py")))
    study = study_file(out.with_name(f"{out.name} study"), PARAMS, run, rows)
    command += ["--study", str(study), "--run", run.name, "--out", str(out)]
    done = ran(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, **CPU[launcher], "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    if descent and launcher != "alone":
        for rank in range(2):
            assert f"process {rank} of 2, sharded: {launcher == 'zero3'}" in done.stdout
    return out


def change(out: Path) -> torch.Tensor:
    """How far the run moved the weights, in one vector."""
    before, after = (
        load_weights(MODEL / "model.safetensors"),
        trained_weights(out / "model.safetensors", MODEL),
    )
    assert before.keys() == after.keys()
    return torch.cat([(after[name] - before[name]).double().flatten() for name in before])


@pytest.mark.parametrize(
    ("launcher", "aggregation"),
    [
        ("ddp", "grpo"),
        pytest.param("zero3", "dapo", marks=needs_deepspeed),
    ],
)
def test_two_processes_have_the_gradient_of_one(
    launcher: str, aggregation: str, rows: Path, tmp_path: Path
) -> None:
    run = control(aggregation=aggregation)
    alone = train("alone", run, rows, tmp_path / "alone", descent=True)
    both = train(launcher, run, rows, tmp_path / "both", descent=True)
    one, two = change(alone), change(both)
    assert float(one.norm()) == pytest.approx(0.1, rel=1e-3)  # clipped
    assert float((one - two).norm()) < 1e-4 * float(one.norm())
    [(_, expected)], [(_, found)] = (read_jsonl(p / "metrics.jsonl") for p in (alone, both))
    if launcher == "zero3":  # what single weights did, nobody sees
        expected = {n: x for n, x in expected.items() if n in found}
        assert len(expected) > 40
    assert found == pytest.approx(expected, rel=2e-4, abs=2e-6)
    assert found["grad_norm"] > 1.1 * run.training.max_grad_norm  # it was clipped


@needs_deepspeed
def test_zero_3_trains_and_saves_an_adapter_and_a_model_that_load_back_equal(
    rows: Path, tmp_path: Path
) -> None:
    from peft import PeftModel

    run = control(steps=2, lora_r=4, lora_alpha=8, learning_rate=1e-2)
    out = train("zero3", run, rows, tmp_path / "out", descent=False)
    assert float(change(out).norm()) > 0.1
    saved = trained_weights(out / "model.safetensors", MODEL)
    adapted = PeftModel.from_pretrained(load_model(MODEL, "sdpa"), str(out / "adapter"))
    merged = adapted.merge_and_unload().state_dict()
    assert saved.keys() == merged.keys()
    assert all(torch.allclose(saved[name], merged[name], atol=1e-6) for name in saved)


def test_rollouts_that_cannot_be_dealt_out_evenly_are_one_line(rows: Path, tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError, match="error: training: prompts_per_step \\* group_size is 9"
    ):
        train(
            "ddp",
            control(prompts_per_step=3, group_size=3),
            rows,
            tmp_path / "out",
            descent=False,
        )
