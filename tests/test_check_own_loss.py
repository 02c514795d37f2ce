"""A check of a loss that makes forward passes of its own: what it reads is read off its gradient by the logits, or not seen."""

from functools import partial
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="trl is not installed: no trainer to check")

from hypothesis import given
from hypothesis import strategies as st

from rlvr_debug.recorders.trl.read_off import read_off
from tests.test_check import built, names, overriding, placed, statuses
from tests.test_check_own_code import chosen, read


def written_out(
    self: Any, _: Any, model: Any, inputs: Any, heat: float, sign: int, rows: int
) -> Any:
    """GRPO's loss with a KL term, from passes of its own over so many rows: what a method of TRL's makes is not asked for."""
    ids, read_of = (
        torch.cat([inputs[f"prompt_{n}"], inputs[f"completion_{n}"]], 1) for n in ("ids", "mask")
    )
    mask = inputs["completion_mask"]
    parts = zip(*(torch.split(each, rows) for each in (ids, read_of)), strict=True)
    how = {"keep": mask.shape[1], "heat": heat or self.temperature}
    logps = torch.cat([read(model, *part, **how) for part in parts])
    gap = sign * (inputs["ref_per_token_logps"] - logps)
    ratio = (logps - logps.detach()).exp()
    by_token = ratio * (self.beta * (gap.exp() - gap - 1) - inputs["advantages"][:, None])
    share = self.current_gradient_accumulation_steps
    return ((by_token * mask).sum(1) / mask.sum(1)).mean() / share


@pytest.mark.parametrize(
    ("heat", "sign", "rows", "first", "named"),
    [
        (0, 1, 8, None, None),
        (0, 1, 3, None, None),
        (0, -1, 8, "loss", "the KL's direction is reversed"),
        (1, 1, 2, "policy log-probabilities", "temperature ignored"),
    ],
    ids=["right", "right, in parts", "KL reversed", "no temperature, in parts"],
)
def test_a_loss_with_a_forward_pass_of_its_own_is_seen_by_its_gradient(
    heat: float, sign: int, rows: int, first: str | None, named: str | None
) -> None:
    """Its loss, gradient and log-probabilities were not seen, and nothing was found."""
    kind = overriding("_compute_loss")(partial(written_out, heat=heat, sign=sign, rows=rows))
    trainer = built(kind, beta=0.4, temperature=0.7, loss_type="grpo", learning_rate=1e-3)
    answer = placed(trainer, first)
    assert "not seen" not in statuses(answer).values()
    assert named is None or named in names(answer)


@pytest.mark.parametrize(
    ("mixed", "beta"),
    [(True, 0.4), (False, 0.4), (False, 1e-6)],
    ids=["outputs in float32", "all in bfloat16", "all, and hardly a KL"],
)
def test_such_a_loss_of_weights_in_bfloat16_agrees(mixed: bool, beta: float) -> None:
    """What a loss rounds in the type of its logits is no fault of its formula."""
    kind = overriding("_compute_loss")(partial(written_out, heat=0, sign=1, rows=8))
    told = {"bf16": mixed, "model_init_kwargs": {"dtype": "bfloat16"}}
    trainer = built(kind, beta=beta, loss_type="grpo", learning_rate=1e-3, **told)
    found = statuses(placed(trainer))
    assert found["loss"] == found["policy log-probabilities"] == "agrees"


def test_a_loss_that_also_reads_the_prompt_s_tokens_is_not_seen() -> None:
    @overriding("_compute_loss")
    def imitates(self: Any, _: Any, model: Any, inputs: Any) -> Any:
        ids, mask = inputs["completion_ids"], inputs["completion_mask"]
        whole = torch.cat([inputs["prompt_ids"], ids], 1)
        seen_by = torch.cat([inputs["prompt_mask"], mask], 1)
        logps = read(model, whole, seen_by, whole.shape[1] - 1)
        own = logps[:, -ids.shape[1] :]
        ratio = (own - own.detach()).exp() * inputs["advantages"][:, None]
        return -(ratio * mask).sum(1).div(mask.sum(1)).mean() - 0.1 * logps.mean()

    found = statuses(placed(built(imitates, beta=0.0, loss_type="grpo")))
    assert found["loss"] == found["gradient"] == "not seen"


@given(
    seed=st.integers(0, 99),
    heat=st.sampled_from([0.7, 1.0]),
    spread=st.sampled_from([0.3, 3.0, 20.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_what_a_loss_reads_is_read_off_the_gradient_of_its_logits_or_not_seen(
    seed: int, heat: float, spread: float, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(2, 5, 40, generator=generator) * spread).to(dtype).requires_grad_()
    ids = logits.argmax(-1) if seed % 2 else torch.randint(40, (2, 5), generator=generator)
    logs = (logits.float() / heat).log_softmax(-1)
    held = logs.detach()
    by = torch.randn(2, 5, generator=generator)
    [back] = torch.autograd.grad((chosen(logs, ids) * by).sum(), logits, retain_graph=True)
    near = 4e-6 if dtype == torch.float32 else 0.02
    found = read_off(logits.detach(), back, ids, (0.7, 1.0))
    certain = float((1 - chosen(held.double().exp(), ids)).min()) < 1e-9
    assert found or certain
    if found and not certain:
        torch.testing.assert_close(found[0], chosen(held, ids), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found[1].float(), by, rtol=near, atol=0)
    # a loss that reads entropies too reads something else
    [back] = torch.autograd.grad((logs.exp() * logs).sum(), logits)
    assert spread == 20 or read_off(logits.detach(), back, ids, (0.7, 1.0)) is None


def test_nothing_is_read_off_a_token_that_is_certain_in_float32() -> None:
    """Its gradient has lost its digits, whatever the loss is, which would be said to leave the token out."""
    logits = torch.tensor([[[100.0, 0.0, 0.0]]], requires_grad=True)
    ids = torch.tensor([[0]])
    [back] = torch.autograd.grad(chosen(logits.log_softmax(-1), ids).sum(), logits)
    assert float(back.abs().max()) < torch.finfo(torch.float32).tiny
    assert read_off(logits.detach(), back, ids, (1.0,)) is None
