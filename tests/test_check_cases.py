"""Scripts in the shape of public reports, with the answer that is right for each; they lie beside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr_debug.checkout import ROOT

pytest.importorskip("trl", reason="trl is not installed: no trainer to check")

CASES = ROOT.parent / "shared" / "cases" / "trl"
RIGHT = {
    "samples_in_two_calls.py halves": (0, "Nothing was found"),
    "samples_in_two_calls.py before": (0, "4 rollouts were sampled and not trained on"),
    "loss_calls_twice.py check": (3, "a term is added to the loss"),
    "subclass_reads_its_reward_functions.py": (0, "Nothing was found"),
    "gmpo_with_a_fault.py": (3, "loss: not GRPO's as set: your `GMPOTrainer` overrides"),
    "rollout_function.py right": (0, "1 of 22 segments was not seen: sampling settings"),
    "rollout_function.py late": (3, "loss mask: "),
    "rollout_function.py all": (3, "loss mask: tool tokens are counted"),
    "rollout_function.py logprobs": (3, "sampler: "),
    "sgd_nesterov.py": (0, "Nothing was found"),
    "rate_times_rate.py": (0, "the rate in effect is 1e-06, 0.001 times the 0.001 that is set"),
    "generation_kwargs_hotter.py": (3, "`generation_kwargs` set `temperature` to 1.4"),
    "rounded_after_each_step.py": (3, "First after update 1"),
    "constant_ratio.py": (3, "the advantages have no gradient in this loss; only the KL term has"),
    "role_only_template.py": (0, "distinct prompts, and 1 as the policy reads them"),
}


@pytest.mark.heavy
@pytest.mark.parametrize("words", RIGHT)
def test_a_script_has_the_answer_that_is_right(words: str, tmp_path: Path) -> None:
    script, *arguments = words.split()
    if not (CASES / script).is_file():
        pytest.skip("the scripts are not there")
    status, said = RIGHT[words]
    done = subprocess.run(
        [sys.executable, "-m", "rlvr_debug.cli", "check", str(CASES / script), *arguments],
        env={**os.environ, "TINY_MODEL": str(ROOT / "models" / "tiny"), "OUT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said in done.stdout, done.stderr
    assert done.returncode == status
