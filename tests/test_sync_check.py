"""Does training see that its sampler has not got the update? The sampler in process, asked where the option sync_bound says so."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_jsonl, write_jsonl
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers.base import Job, Run
from rlvr_debug.trainers.own.training import train_run
from tests.small import ROWS, SETTINGS

PARAMS = load_params(ROOT / "params.yaml")

Verified = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def verified(tmp_path: Path) -> Verified:
    """(bound, faults, training's) -> metrics of a run as a study's job makes it, verified where there is a bound."""

    def run(bound: float = 0, faults: tuple[str, ...] = (), **told: Any) -> list[dict[str, Any]]:
        rows, out = tmp_path / "rows.jsonl", tmp_path / "out"
        write_jsonl(rows, (row.to_json() for row in ROWS))
        options = {"sync_bound": bound} if bound else {}
        settings = replace(SETTINGS, save_steps=0, prompts_per_step=2, **told)
        named = Run(
            *("arm", "repair", "", "musique", 0, "own", faults, {}, options, settings, "arm")
        )
        train_run(Job(named, PARAMS.settings("musique"), ROOT / "models" / "tiny", rows, out))
        return [row for _, row in read_jsonl(out / "metrics.jsonl")]

    return run


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the sampler was asked for: how many sequences at a time; it answers so much too low."""
    told = SimpleNamespace(sequences=[], off=0.0)
    logprobs = InProcessSampler.logprobs

    def counted(sampler: InProcessSampler, ids: list[list[int]]) -> list[list[float]]:
        told.sequences.append(len(ids))
        return [[value - told.off for value in row] for row in logprobs(sampler, ids)]

    monkeypatch.setattr(InProcessSampler, "logprobs", counted)
    return told


@pytest.mark.parametrize("lora_r", [0, 4])
def test_a_sampler_is_verified_after_each_update_where_the_options_say_so(
    verified: Verified, asked: SimpleNamespace, lora_r: int
) -> None:
    plain = verified(lora_r=lora_r)
    assert not asked.sequences
    watched = verified(1e-3, lora_r=lora_r)
    assert asked.sequences == [4, 4]
    assert [0 < row["sync_gap"] < 1e-5 for row in watched] == [True, True]
    assert "sync_gap" not in plain[0]
    # to look changes nothing that is trained
    assert [{**row, "sync_gap": None} for row in plain] == [
        {**row, "sync_gap": None} for row in watched
    ]


def test_a_sampler_that_stays_behind_ends_the_run_that_verifies_it_at_its_first_update(
    verified: Verified,
) -> None:
    assert len(verified(0, ("stale-sampler",), lora_r=4)) == 2
    with pytest.raises(InputError, match=r"^step 1: .* has not received the trained weights$"):
        verified(1e-3, ("stale-sampler",), lora_r=4)


def test_a_sampler_that_follows_and_computes_otherwise_is_above_the_bound(
    verified: Verified, asked: SimpleNamespace
) -> None:
    asked.off = 5.0
    with pytest.raises(InputError, match=r"expected at most 0\.1 \(options\.sync_bound\)"):
        verified(0.1)
