"""Does training see that its sampler has not got the update? A server is a model in this process."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_jsonl, write_jsonl
from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.grpo.settings import NO_ROLLOUTS
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.trainer import train
from rlvr_debug.grpo.training import Training
from rlvr_debug.metrics.observer import RunObserver
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers import Job, Run
from rlvr_debug.trainers.own.training import SyncCheck, train_run
from tests.small import ROWS, SETTINGS, small_environment

PARAMS = load_params(ROOT / "params.yaml")

Checked = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def checked(chat: Chat, talkative: Callable[[int], Any]) -> Checked:
    """(stages, off) -> metrics of a training whose server has the sampler's weights, moved by `off`."""

    def run(stages: Stages, off: float = 0.0) -> list[dict[str, Any]]:
        model, served = talkative(0), talkative(0)
        sampler = InProcessSampler(model.config.to_dict(), model.state_dict(), chat.ends)

        @torch.no_grad()
        def ask(sequences: list[list[int]]) -> list[list[float]]:
            served.load_state_dict(sampler.weights(), strict=False)
            served.lm_head.weight.mul_(1 + off)
            found = []
            for ids in sequences:
                row = torch.tensor([ids])
                found.append(token_logprobs(served, row, row >= 0, row >= 0)[0, 1:].tolist())
            assert 0 < len(sequences) <= 4
            return found

        environment, check = small_environment(), SyncCheck(ask, 0.01, "vllm.sync_bound")
        settings = replace(SETTINGS, kl_beta=0.0)
        training = Training(chat, environment, ROWS, settings, 0, stages, check=check)
        observer = RunObserver(NO_ROLLOUTS)
        return train(training, model, None, sampler, observer=observer).metrics

    return run


def test_a_server_that_follows_has_next_to_no_gap_and_it_is_recorded(checked: Checked) -> None:
    assert [row["sync_gap"] < 1e-5 for row in checked(Stages())] == [True, True]


def test_a_server_that_stays_behind_ends_the_training_at_its_first_update(checked: Checked) -> None:
    behind = Stages(sync=lambda policy, sampler: None)
    with pytest.raises(InputError, match=r"^step 1: .* has not received the trained weights$"):
        checked(behind)


def test_a_server_that_follows_and_computes_otherwise_is_above_the_bound(checked: Checked) -> None:
    with pytest.raises(InputError, match=r"expected at most 0\.01 \(vllm\.sync_bound\)"):
        checked(Stages(), off=0.5)


# --- the sampler in process, asked where the option sync_bound says so


@pytest.fixture
def verified(chat: Chat, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """(faults, options, training's) -> metrics of a run as a study's job makes it."""

    def run(
        faults: tuple[str, ...] = (), options: Mapping[str, Any] = MappingProxyType({}), **told: Any
    ) -> list[dict[str, Any]]:
        rows, out = tmp_path / "rows.jsonl", tmp_path / "out"
        write_jsonl(rows, (row.to_json() for row in ROWS))
        settings = replace(SETTINGS, save_steps=0, **told)
        named = Run(
            *("arm", "repair", "", "musique", 0, "own", faults, {}, dict(options), settings, "arm")
        )
        train_run(Job(named, PARAMS.settings("musique"), ROOT / "models" / "tiny", rows, out))
        return [row for _, row in read_jsonl(out / "metrics.jsonl")]

    return run


@pytest.mark.parametrize("lora_r", [0, 4])
def test_a_sampler_in_process_is_verified_after_each_update_where_the_options_say_so(
    verified: Callable[..., list[dict[str, Any]]], lora_r: int
) -> None:
    plain, watched = verified(lora_r=lora_r), verified(options={"sync_bound": 1e-3}, lora_r=lora_r)
    assert [0 < row["sync_gap"] < 1e-5 for row in watched] == [True, True]
    assert "sync_gap" not in plain[0]
    # to look changes nothing that is trained
    assert [{**row, "sync_gap": None} for row in plain] == [
        {**row, "sync_gap": None} for row in watched
    ]


def test_a_stale_sampler_in_process_ends_the_run_that_verifies_it_and_no_other(
    verified: Callable[..., list[dict[str, Any]]],
) -> None:
    assert len(verified(("stale-sampler",), lora_r=4)) == 2
    with pytest.raises(InputError, match=r"^step 1: .* has not received the trained weights$"):
        verified(("stale-sampler",), {"sync_bound": 1e-3}, lora_r=4)


def test_the_sampler_in_process_says_of_given_tokens_what_the_model_does(
    chat: Chat, talkative: Callable[[int], Any]
) -> None:
    model = talkative(0)
    sampler = InProcessSampler(model.config.to_dict(), model.state_dict(), chat.ends)
    sequences = [[5, 6, 7, 8, 9, 10], [11, 12, 13]]
    for ids, found in zip(sequences, sampler.logprobs(sequences), strict=True):
        row = torch.tensor([ids])
        with torch.no_grad():
            right = token_logprobs(model, row, row >= 0, row >= 0)[0, 1:]
        assert found == pytest.approx(right.tolist(), rel=1e-6)
