"""The command that users of the original know, on the same trainer."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from rlvr_debug.checkout import ROOT
from rlvr_debug.environments.gsm8k import synthetic_gsm8k
from rlvr_debug.environments.musique.rows import synthetic_musique
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_jsonl, read_yaml, write_jsonl
from rlvr_debug.models.places import BaseModel
from rlvr_debug.processes import run_main
from rlvr_debug.study import single
from rlvr_debug.study.params import load_params
from rlvr_debug.study.single import model_of
from rlvr_debug.trainers import Job
from scripts.train_flags import overlay_of, parser_of, train_by_flags

CASES = read_yaml(Path(__file__).with_suffix(".yaml"))

# as it was typed for the case that this project starts from, but for the length of the run
ORIGINAL = [
    *("train", "--loss-type", "grpo", "--no-scale-rewards", "--lora-r", "16", "--lora-alpha", "32"),
    *("--batch-size", "8", "--num-generations", "8", "--gradient-accumulation-steps", "4"),
    *("--max-grad-norm", "0.1", "--learning-rate", "1e-5", "--max-steps", "2", "--kl-beta", "0.0"),
]


def rows_file(environment: str, folder: Path) -> str:
    path = folder / "given.jsonl"
    if environment == "musique":
        musique = synthetic_musique(8, hops={2: 1}, paragraphs=6, same_relation=0.5, seed=0)
        rows = [row.to_json() for row in musique]
    else:
        rows = [row.to_json() for row in synthetic_gsm8k(8, steps={1: 1}, seed=0)]
    write_jsonl(path, rows)
    return str(path)


@pytest.mark.parametrize(
    ("environment", "own"),
    [
        ("musique", {"steps": 2, "max_prompt_length": 4096}),
        # a step is a batch of rollouts, of which the original's script makes two updates there
        ("gsm8k", {"steps": 1, "num_iterations": 2, "max_prompt_length": 1024, "bf16": True}),
    ],
)
def test_the_original_s_flags_are_taken_for_what_they_meant(
    environment: str, own: dict[str, Any], tmp_path: Path
) -> None:
    given = [*ORIGINAL, "--rows", rows_file(environment, tmp_path), "--max-new-tokens", "16"]
    train_by_flags(environment, [*given, "--output-dir", str(tmp_path / "out")])
    training = yaml.safe_load((tmp_path / "out" / "params.yaml").read_text())["training"]
    expected = {
        **own,
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
        "lr_scheduler_type": "constant",
        "warmup_steps": 10,
    }
    assert {key: training[key] for key in expected} == expected
    metrics = [row for _, row in read_jsonl(tmp_path / "out" / "metrics.jsonl")]
    assert [row["step"] for row in metrics] == [*range(1, own["steps"] + 1)]
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize(("flags", "said"), CASES["flags out of range are one line"])
def test_flags_out_of_range_are_one_line(flags: str, said: str, tmp_path: Path) -> None:
    given = ["train", "--rows", rows_file("musique", tmp_path)]
    if "--datasets" in flags:
        given = ["train"]
    with pytest.raises(InputError, match=re.escape(said)):
        train_by_flags("musique", [*given, "--output-dir", str(tmp_path / "out"), *flags.split()])
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("flags", "expected"), CASES["flags are settings of a study that is taken"]
)
def test_flags_are_settings_of_a_study_that_is_taken(
    flags: str, expected: dict[str, Any], tmp_path: Path
) -> None:
    args = parser_of("musique").parse_args(["train", *flags.split()])
    overlay = overlay_of("musique", args)
    overlay["training"].setdefault("steps", 1)
    file = tmp_path / "params.yaml"
    file.write_text(yaml.safe_dump(overlay))
    training = vars(load_params(ROOT / "params.yaml", file).training)
    assert {key: training[key] for key in expected} == expected


def test_epochs_are_as_many_steps_as_rows_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Job] = []
    monkeypatch.setattr(single, "load_trainer", lambda _: SimpleNamespace(train=jobs.append))
    given = ["train", "--rows", rows_file("musique", tmp_path), "--num-epochs", "3"]
    given += ["--batch-size", "4", "--gradient-accumulation-steps", "4", "--num-generations", "4"]
    train_by_flags("musique", [*given, "--output-dir", str(tmp_path)])
    # three times eight rows, four a step
    assert [job.run.training.steps for job in jobs] == [6]


def test_a_model_is_a_folder_or_one_of_the_hub(tmp_path: Path) -> None:
    assert model_of(str(tmp_path)) == BaseModel(str(tmp_path))
    assert model_of("Qwen/Qwen2.5-7B-Instruct") == BaseModel("Qwen/Qwen2.5-7B-Instruct", "main")
    assert model_of("owner/model@0123abc") == BaseModel("owner/model", "0123abc")
    for name in ("nowhere", "a/b/c", "../model"):
        with pytest.raises(InputError, match="give a folder, or owner/name"):
            model_of(name)


def test_a_switch_is_on_or_off(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser_of("musique").parse_args(["train", "--bf16", "maybe"])
    assert "--bf16: found 'maybe', expected true or false" in capsys.readouterr().err


def test_an_interrupted_script_ends_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end:
        run_main(main)
    assert end.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("environment", ["musique", "gsm8k"])
def test_every_flag_stands_on_the_page_of_the_original_s_commands(environment: str) -> None:
    page = (ROOT / "docs" / "original.md").read_text(encoding="utf-8")
    told = parser_of(environment).parse_args(["train"])
    flags = {f"--{name.replace('_', '-')}" for name in vars(told)} - {"--schedules"}
    flags -= {"--retrieval"}  # --retriever
    assert {flag for flag in flags if f"`{flag}`" not in page and "vllm" not in flag} == set()
