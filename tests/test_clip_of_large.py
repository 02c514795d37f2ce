"""The clip's segment where a gradient has so many numbers that its own precision sums up another norm."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlvr_debug.recorders.keeping import whole_norms
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import judge
from rlvr_debug.replay.record import Record, Update
from rlvr_debug.replay.segments.gradient import CLIP, norm, norm_as_summed
from rlvr_debug.replay.settings import Sampling, Settings

LIMIT = 0.1


@pytest.fixture(scope="module")
def clipped() -> Update:
    """Return an update whose gradient torch has clipped: one tensor of 8 M numbers, as small models have none."""
    generator = torch.Generator().manual_seed(0)
    parameter = torch.nn.Parameter(torch.zeros(8_000_000))
    parameter.grad = torch.randn(8_000_000, generator=generator) * 1e-3
    before = {"w": parameter.grad.clone()}
    torch.nn.utils.clip_grad_norm_([parameter], LIMIT)
    return Update(gradients=before, clipped={"w": parameter.grad})


def status(update: Update, **told: Any) -> str:
    settings = Settings(2, Sampling(), 8, max_grad_norm=LIMIT)
    record = Record("made up", settings, None, None, lambda: None, updates=[update], **told)
    return judge("clip", CLIP.instances(record, None)).status  # type: ignore[arg-type]


def test_a_norm_that_float32_sums_up_otherwise_is_no_deviation(clipped: Update) -> None:
    assert clipped.gradients is not None
    off = norm_as_summed(clipped.gradients) / norm(clipped.gradients) - 1
    assert abs(off) > 1e-4  # or there is nothing to be tested
    assert status(clipped) == "agrees"


def test_a_clip_that_is_further_off_than_the_norm_deviates(clipped: Update) -> None:
    assert clipped.clipped is not None
    less = {name: tensor * 0.99 for name, tensor in clipped.clipped.items()}
    assert status(replace(clipped, clipped=less)) == "deviates"


def test_of_a_part_of_a_gradient_the_whole_norm_is_read(clipped: Update) -> None:
    assert clipped.gradients is not None
    assert clipped.clipped is not None
    model = SimpleNamespace(
        named_parameters=lambda: [("w", SimpleNamespace(grad=clipped.gradients["w"]))]
    )
    before, summed = whole_norms(model)
    some = {"w": torch.arange(0, 8_000_000, 1000)}
    part = replace(
        clipped,
        gradients={"w": clipped.gradients["w"][some["w"]]},
        clipped={"w": clipped.clipped["w"][some["w"]]},
        norms=(before, norm(clipped.clipped), summed),
    )
    assert status(part, elements=some) == "agrees"
    assert status(replace(part, norms=(before, norm(clipped.clipped))), elements=some) == "deviates"
    with pytest.raises(NotSeen, match="norm of the whole gradient"):
        status(replace(part, norms=None), elements=some)
