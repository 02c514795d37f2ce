"""What was written for an older version goes on working: overlays as they stood there, and resolved studies without newer keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params
from rlvr_debug.study.resolved import read_study, resolve, write_study

# arms as the first params.yaml had them, each with all that it changes
FIRST = """
study: mine
seeds: [0, 1]
design: fixed
training: {steps: 8}
hypotheses:
  hidden-context:
    arms:
      attention-mask: {swap: [attention_mask]}
  sequence-mismatch:
    arms:
      prompt-tools: {swap: [trained_prompt]}
      generation-prompt: {swap: [trained_tool_turn]}
  kl-penalty:
    arms:
      kl-beta-0: {training: {kl_beta: 0.0}}
  advantage-scaling:
    arms:
      no-scaling: {training: {scale_rewards: none}}
  lora-weight-sync:
    arms:
      forced-sync: {swap: [sync]}
  library-functionality:
    arms:
      gsm8k: {environment: gsm8k}
"""
NAMED = "study: mine\ndesign: fixed\nseeds: [0, 1]\ntraining: {steps: 8}\n"


def loaded(text: str, folder: Path) -> Params:
    overlay = folder / "mine.yaml"
    overlay.write_text(text, encoding="utf-8")
    return load_params(ROOT / "params.yaml", overlay)


def test_arms_that_are_spelled_out_as_in_the_first_version_are_those_of_their_causes(
    tmp_path: Path,
) -> None:
    assert (
        resolve(loaded(FIRST, tmp_path), ROOT).runs == resolve(loaded(NAMED, tmp_path), ROOT).runs
    )


def test_seeds_of_an_older_overlay_are_kept_or_one_line_says_what_stands_beside_them(
    tmp_path: Path,
) -> None:
    """Seeds were all that there was before studies had designs."""
    older = "study: mine\nseeds: [3, 4]\ntraining: {steps: 8}\n"
    for said in ("", "design: fixed\n"):
        found = loaded(f"{older}{said}", tmp_path)
        assert {run.seed for run in resolve(found, ROOT).runs} == {3, 4}
    with pytest.raises(InputError, match="'seeds' is given with design sequential") as caught:
        loaded(f"{older}design: sequential\n", tmp_path)
    assert "expected design: fixed, or no seeds" in str(caught.value)


def test_a_study_that_was_resolved_before_a_key_was_there_is_read(tmp_path: Path) -> None:
    """A newer key that says what was so before stands in no resolved study, so that nothing runs again for it either."""
    path = tmp_path / "study.json"
    write_study(resolve(loaded(NAMED, tmp_path), ROOT), path)
    params = read_json(path)["params"]
    assert "verifiers_rows" not in params["evaluation"]
    assert read_study(path).params.evaluation.verifiers_rows == 0


def test_a_key_that_nothing_reads_is_one_line_with_the_nearest_that_is_there(
    tmp_path: Path,
) -> None:
    with pytest.raises(InputError) as caught:
        loaded("study: mine\nevaluation: {seeds: 3}\n", tmp_path)
    assert "'evaluation.seeds'" in str(caught.value)
    assert "seed" in str(caught.value).partition("'evaluation.seeds'")[2]
    assert "\n" not in str(caught.value)
