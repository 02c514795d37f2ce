"""What other frameworks log is understood: their own files, and the names that their sources give to a step's figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.logs.log import Log, read_log
from rlvr_debug.logs.names import framework_of
from tests.in_process import called

PLACE = ROOT / "tests" / "loggers"
ROWS = 12  # of each file
TOLD: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
    (PLACE / "names.yaml").read_text(encoding="utf-8")
)
NOT_READ = {None, "part", "shadowed"}


def value(step: int) -> float:
    """Return a made-up value, another one at each step."""
    return 0.1 + 0.05 * step


def written(framework: str, folder: Path) -> Path:
    """Return a log with all names of a framework, of which those of a held-out score stand in every fourth row."""
    rows: list[dict[str, float]] = []
    for step in range(1, ROWS + 1):
        names = TOLD[framework]["names"]
        row = {
            name: value(step) + place for place, name in enumerate(names) if names[name] != "step"
        }
        kept = {
            name: number
            for name, number in row.items()
            if names[name] != "heldout" or step % 4 == 0
        }
        [counter] = [name for name, quantity in names.items() if quantity == "step"]
        rows.append({counter: step, **kept})
    path = folder / f"{framework}.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def assert_understood(log: Log, framework: str) -> None:
    names: Mapping[str, str | None] = TOLD[framework]["names"]
    expected = {quantity: name for name, quantity in names.items() if quantity not in NOT_READ}
    assert dict(log.sources) == expected
    assert set(log.unknown) == {name for name, quantity in names.items() if quantity is None}
    assert framework_of(log.sources) == framework


@pytest.mark.parametrize("framework", TOLD)
def test_every_figure_of_a_framework_is_read_as_what_it_is(framework: str, tmp_path: Path) -> None:
    path = written(framework, tmp_path)
    log = read_log(path)
    assert_understood(log, framework)
    assert log.series("reward").size == ROWS
    if "heldout" in log.sources:
        assert log.series("heldout").size == ROWS // 4
    parts = [name for name, quantity in TOLD[framework]["names"].items() if quantity == "part"]
    assert log.parts.shape[1] == len(parts)
    done = called(main, "rlvr-debug", "diagnose", str(path))
    assert (done.returncode, done.stderr) == (0, "")


def test_what_verl_logs_itself_is_read() -> None:
    log = read_log(PLACE / "verl.jsonl")
    assert len(log.steps) == ROWS
    assert framework_of(log.sources) == "verl"
    for quantity, name in {
        "reward": "critic/score/mean",
        "length": "response_length/mean",
        "length_max": "response_length/max",
        "truncated": "response_length/clip_ratio",
        "prompt_truncated": "prompt_length/clip_ratio",
        "advantage_mean": "critic/advantages/mean",
        "advantage_max": "critic/advantages/max",
        "sampler_prob_gap": "training/rollout_probs_diff_mean",
        "sampler_pearson": "training/rollout_actor_probs_pearson_corr",
        "sampler_kl": "rollout_corr/k3_kl",
        "sampler_ratio_min": "rollout_corr/rollout_is_min",
        "correction_ess": "rollout_corr/rollout_is_eff_sample_size",
        "correction_weight": "rollout_corr/rollout_is_mean",
        "correction_masked": "rollout_corr/rollout_rs_masked_fraction",
        "seconds": "timing_s/step",
    }.items():
        assert log.sources[quantity] == name
        assert log.series(quantity).size == ROWS


def test_what_openrlhf_s_logger_writes_is_read() -> None:
    log = read_log(PLACE / "openrlhf")
    assert log.kind == "TensorBoard's events"
    names = TOLD["openrlhf"]["names"]
    read = {q: n for n, q in names.items() if q not in {*NOT_READ, "heldout", "step"}}
    assert {quantity: log.sources[quantity] for quantity in read} == read
    assert log.series("grad_norm") == pytest.approx([value(step) for step in range(1, ROWS + 1)])
