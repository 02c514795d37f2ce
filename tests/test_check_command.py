"""`rlvr-debug check SCRIPT` as a command: a script of TRL's in a process of its own, and words that are no check."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.files import read_yaml
from tests.in_process import called

CASES = read_yaml(Path(__file__).with_suffix(".yaml"))

pytest.importorskip("trl", reason="trl is not installed: no trainer to check")

TINY = ROOT / "models" / "tiny"

SCRIPT = f"""
import sys, torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
torch.set_num_threads(1)
how = sys.argv[1]
if how == "fails": raise KeyError("no such column")
if how == "exits": sys.exit(4)
if how == "never": sys.exit()
if how == "cuda": torch.zeros(1, device="cuda")
rows = [{{"prompt": f"What is {{a}} plus {{a}}?"}} for a in range(8)]
def reward(completions, **_): return [float(len(c) % 5) for c in completions]
config = GRPOConfig("out", per_device_train_batch_size=4, num_generations=2, max_completion_length=8, max_steps=50,
                    learning_rate=1e-3, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True)
trainer = GRPOTrainer({str(TINY)!r}, [reward], config, Dataset.from_list(rows),
                      processing_class=AutoTokenizer.from_pretrained({str(TINY)!r}))
print("a line of the script's own")
if how == "changes": trainer.args.delta = 1.5
trainer.train()
print("never printed: the check ends the script")
trainer.train()
"""


def run(folder: Path, *words: str) -> CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    return called(main, "rlvr-debug", "check", *words[:-1], str(script), words[-1], root=folder)


def test_a_script_is_checked_and_ended_and_arguments_that_it_changes_are_said(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, "--json", "changes")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["first"] is None
    assert answer["updates"] == 3
    assert set(answer["seconds"]) == {"imports", "steps", "check"}
    assert "a line of the script's own" in done.stderr
    assert "never printed" not in done.stderr
    [said] = [note for note in answer["notes"] if "arguments" in note]
    assert "the script changed delta from None to 1.5" in said


def test_a_module_is_checked_as_python_runs_it_and_what_it_computes_on_purpose_is_declared(
    tmp_path: Path,
) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(SCRIPT, encoding="utf-8")
    page, baseline = tmp_path / "page.html", tmp_path / "baseline.json"
    files = ("--html", str(page), "--json-out", str(baseline))
    words = (
        "--expect",
        "loss=dr_grpo",
        "--strict",
        "-m",
        "mine.train",
        "healthy",
        "--htlm",
        "x",
        "-v",
    )
    done = called(main, "rlvr-debug", "check", *files, *words, root=tmp_path)
    assert done.returncode == 3, done.stderr
    assert done.stderr.endswith(f"{page}: written\n{baseline}: written\n")
    assert "loss: not what was declared, dr_grpo." in done.stdout
    assert "\nNext: " in done.stdout
    assert (
        "note: --htlm is passed to the script; the check's own --html goes before it" in done.stderr
    )
    assert "note: -v is passed to the script; the check's own -v goes before it" in done.stderr


LINES = {
    "fails": "train.py:8: KeyError: 'no such column'",
    "cuda": "ended with status 1 before its steps were recorded: ",
    "exits": "ended with status 4 before its steps were recorded",
    "never": "ended without a call of GRPOTrainer.train, expected a script that trains",
}


@pytest.mark.parametrize(
    "how", ["fails", *(pytest.param(each, marks=pytest.mark.heavy) for each in [*LINES][1:])]
)
def test_a_script_that_does_not_train_is_one_line(tmp_path: Path, how: str) -> None:
    done = run(tmp_path, how)
    assert done.returncode == 2
    [said] = done.stderr.strip().splitlines()[-1:]
    assert said.startswith("error: ")
    assert LINES[how] in said
    # the traceback and the line say it, and nothing between them does
    assert done.stderr.count("KeyError: 'no such column'") <= 2
    assert "check_script.py" not in done.stderr


@pytest.mark.parametrize(("words", "line"), CASES["words that are no check are one line"])
def test_words_that_are_no_check_are_one_line(tmp_path: Path, words: list[str], line: str) -> None:
    (tmp_path / "log.jsonl").write_text('{"loss": 1.0}\n', encoding="utf-8")
    done = called(main, "rlvr-debug", "check", *words, root=tmp_path)
    assert done.returncode == 2
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1
