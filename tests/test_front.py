"""The command that users of the original know, on the same trainer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlvr_debug.environments.gsm8k.synthetic import synthetic_gsm8k
from rlvr_debug.environments.musique.synthetic import synthetic_musique
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_jsonl, write_jsonl
from rlvr_debug.processes import run_main
from scripts.train_flags import train_by_flags

# as it was typed for the case that this project starts from, but for the length of the run
ORIGINAL = [
    "train",
    "--loss-type",
    "grpo",
    "--no-scale-rewards",
    "--lora-r",
    "16",
    "--lora-alpha",
    "32",
    "--batch-size",
    "8",
    "--num-generations",
    "8",
    "--gradient-accumulation-steps",
    "4",
    "--max-grad-norm",
    "0.1",
    "--learning-rate",
    "1e-5",
    "--max-steps",
    "2",
    "--kl-beta",
    "0.0",
]


def rows_file(environment: str, folder: Path) -> str:
    path = folder / "given.jsonl"
    if environment == "musique":
        rows = synthetic_musique(8, hops={2: 1}, paragraphs=6, same_relation=0.5, seed=0)
        write_jsonl(path, (row.to_json() for row in rows))
    else:
        numbers = synthetic_gsm8k(8, steps={1: 1}, seed=0)
        write_jsonl(path, (row.to_json() for row in numbers))
    return str(path)


@pytest.mark.parametrize("environment", ["musique", "gsm8k"])
def test_the_original_s_flags_are_taken_for_what_they_meant(
    environment: str, tmp_path: Path
) -> None:
    given = [*ORIGINAL, "--rows", rows_file(environment, tmp_path), "--max-new-tokens", "16"]
    train_by_flags(environment, [*given, "--out", str(tmp_path / "out")])
    training = yaml.safe_load((tmp_path / "out" / "params.yaml").read_text())["training"]
    expected = {
        "steps": 2,
        "prompts_per_step": 4,
        "group_size": 8,
        "gradient_accumulation_steps": 4,
        "aggregation": "grpo",
        "scale_rewards": "none",
        "lora_r": 16,
        "lora_alpha": 32,
        "max_grad_norm": 0.1,
        "learning_rate": 1e-5,
        "kl_beta": 0.0,
        "temperature": 0.5,
        "max_prompt_length": 4096,
        "lr_scheduler_type": "constant",
        "warmup_steps": 10,
    }
    assert {key: training[key] for key in expected} == expected
    metrics = [row for _, row in read_jsonl(tmp_path / "out" / "metrics.jsonl")]
    assert [row["step"] for row in metrics] == [1, 2]
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--num-generations 5", "is 32, expected a multiple of --num-generations 5"),
        ("--num-generations 0", "expected a multiple of --num-generations 0"),
        ("--learning-rate -1", "params.yaml: key 'training.learning_rate' is float -1.0"),
        ("--rows missing.jsonl", "missing.jsonl: No such file or directory"),
        ("--datasets musique", "data.musique.datasets: found 'musique'"),
        ("--model nowhere", "nowhere"),
    ],
)
def test_flags_out_of_range_are_one_line(flags: str, said: str, tmp_path: Path) -> None:
    given = ["train", "--rows", rows_file("musique", tmp_path)]
    if "--datasets" in flags:
        given = ["train"]
    with pytest.raises(InputError, match=re.escape(said)):
        train_by_flags("musique", [*given, "--out", str(tmp_path / "out"), *flags.split()])
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


def test_an_interrupted_script_ends_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end:
        run_main(main)
    assert end.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_output_that_nobody_reads_any_more_is_no_traceback() -> None:
    """As with `| head`."""
    read, write = os.pipe()
    os.close(read)
    code = "from rlvr_debug.processes import run_main; run_main(lambda: print('x' * 100_000))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (141, "")
