"""How the calls of a sampler are matched with the rows that are trained on."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from rlvr_debug.recorders.trl.sampler_calls import trained_calls
from rlvr_debug.replay.record import Batch, Call
from rlvr_debug.replay.rollouts import rows_of

_REPLY = st.lists(st.integers(5, 9), min_size=1, max_size=4)
_GROUPS = st.lists(
    st.tuples(st.integers(1, 4), st.lists(_REPLY, min_size=4, max_size=4)), min_size=1, max_size=3
)
END = [2]


def trained(rows: list[tuple[list[int], list[int]]], counted: list[bool]) -> Batch:
    """Return the rows as a batch. Of a row that is not counted the trainer masks every token."""
    ids = pad_sequence([torch.tensor(reply) for _, reply in rows], batch_first=True)
    mask = ids.bool() & torch.tensor(counted)[:, None]
    prompts = torch.tensor([prompt for prompt, _ in rows])
    return Batch(prompts, torch.ones_like(prompts), ids, mask, mask, torch.zeros(len(rows)))


@given(_GROUPS, st.integers(1, 3))
def test_groups_that_are_sampled_in_rounds_and_filled_up_are_one_call_of_all_rows(
    groups: list[tuple[int, list[list[int]]]], drawn: int
) -> None:
    prompts = [[number + 20, token] for number, (token, _) in enumerate(groups)]
    calibration = Call([[99, 1], [99, 2]], [[7], [8]])
    rounds = [
        Call(
            [*prompts],
            [replies[n] for _, replies in groups],
            [[-1.0] * len(r[n]) for _, r in groups],
        )
        for n in range(drawn)
    ]
    rows = [
        (prompt, replies[n] if n < drawn else END)
        for prompt, (_, replies) in zip(prompts, groups, strict=True)
        for n in range(4)
    ]
    batch = trained(rows, [n % 4 < drawn for n in range(len(rows))])
    calls, unused = trained_calls([calibration, *rounds], batch)
    assert unused == 2
    assert calls[0].prompts == [prompt for prompt, _ in rows]
    assert calls[0].outputs == [reply if n % 4 < drawn else [] for n, (_, reply) in enumerate(rows)]
    filled = [n for n in range(len(rows)) if n % 4 >= drawn]
    assert rows_of(calls) == [[*range(len(rows))], filled]
    assert not any(calls[1].outputs)


def test_a_row_that_counts_and_that_no_call_wrote_leaves_the_calls_as_they_are() -> None:
    calls = [Call([[3, 4]], [[7]], [[-1.0]])]
    batch = trained([([3, 4], [7]), ([3, 4], END)], [True, True])
    assert trained_calls(calls, batch) == (calls, 0)
