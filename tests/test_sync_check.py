"""A server that is a model in this process: does training see that it has not got the update?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlvr_debug.errors import InputError
from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.sync_check import SyncCheck
from rlvr_debug.grpo.trainer import train
from rlvr_debug.grpo.training import Training
from rlvr_debug.metrics.observer import RunObserver
from rlvr_debug.metrics.settings import NO_ROLLOUTS
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.qwen2 import Qwen2Sampler
from tests.small import ROWS, SETTINGS, small_environment

Checked = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def checked(chat: Chat, talkative: Callable[[int], Any]) -> Checked:
    """(stages, off) -> metrics of a training whose server has the sampler's weights, moved by `off`."""

    def run(stages: Stages, off: float = 0.0) -> list[dict[str, Any]]:
        model, served = talkative(0), talkative(0)
        sampler = Qwen2Sampler(model.config.to_dict(), model.state_dict(), chat.eos_id)

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

        environment, check = small_environment(), SyncCheck(ask, 0.01)
        settings = replace(SETTINGS, kl_beta=0.0)
        training = Training(chat, environment, ROWS, settings, 0, stages, check=check)
        observer = RunObserver(NO_ROLLOUTS)
        return train(training, model, None, sampler, observer=observer).metrics

    return run


def test_a_server_that_follows_has_next_to_no_gap_and_it_is_recorded(checked: Checked) -> None:
    assert [row["sync_gap"] < 1e-5 for row in checked(Stages())] == [True, True]


def test_a_server_that_stays_behind_ends_the_training_at_its_first_update(checked: Checked) -> None:
    behind = Stages(sync=lambda policy, sampler: None)
    with pytest.raises(InputError, match=r"^step 1: .* has not got the trained weights$"):
        checked(behind)


def test_a_server_that_follows_and_computes_otherwise_is_above_the_bound(checked: Checked) -> None:
    with pytest.raises(InputError, match=r"expected at most 0\.01 \(vllm\.sync_bound\)"):
        checked(Stages(), off=0.5)
