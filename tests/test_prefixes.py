"""Sequences that begin alike go through the model once, and every log-probability is that of its own sequence."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlvr_debug.grpo.logprobs import passes, prefix_trees, token_logprobs

RandomModel = Callable[[int], Any]


def branching(seed: int, count: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """ids, what is seen of them, and lengths, of sequences that each leave another one somewhere."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator)

    ids, seen = drawn(6, count, width), drawn(5, count, width) > 0
    for row in range(1, count):
        other, common = int(drawn(row)), int(drawn(width + 1))
        ids[row, :common], seen[row, :common] = ids[other, :common], seen[other, :common]
    return ids, seen, 1 + drawn(width, count)


batches = st.builds(branching, st.integers(0, 10_000), st.integers(1, 20), st.integers(1, 24))


@given(batches)
@settings(max_examples=60)
def test_a_tree_has_each_token_of_its_sequences_and_what_that_may_see(
    batch: tuple[Tensor, Tensor, Tensor],
) -> None:
    ids, seen, lengths = batch
    trees = prefix_trees(ids, seen, lengths)
    assert sorted(torch.cat([tree.rows for tree in trees]).tolist()) == list(range(len(ids)))
    for tree in trees:
        assert len(tree.ids) <= 2 * int(lengths.max())
        for row, places in zip(tree.rows.tolist(), tree.places, strict=True):
            length = int(lengths[row])
            own = places[:length]
            assert torch.equal(tree.ids[own], ids[row, :length])
            assert torch.equal(tree.depth[own], torch.arange(length))
            visible = tree.visible()[own]
            assert torch.equal(
                visible[:, own], torch.ones(length, length).bool().tril() & seen[row, :length]
            )
            # nothing of another branch
            assert torch.equal(visible.sum(1), visible[:, own].sum(1))


def test_what_sequences_share_stands_once_and_apart_where_it_is_seen_otherwise() -> None:
    ids = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5], [7, 8, 9, 9]])
    seen = torch.ones_like(ids).bool()
    lengths = torch.full((3,), 4)
    assert [len(tree.ids) for tree in prefix_trees(ids, seen, lengths)] == [4, 5]
    assert [len(tree.ids) for tree in prefix_trees(ids, seen, lengths, shared=False)] == [4, 4, 4]
    seen[1, 0] = False
    assert [len(tree.ids) for tree in prefix_trees(ids, seen, lengths)] == [4, 4, 4]


@given(batches, st.integers(1, 30))
def test_every_process_makes_as_many_passes_whatever_its_sequences_share(
    batch: tuple[Tensor, Tensor, Tensor], count: int
) -> None:
    ids, seen, lengths = batch
    found = list(passes(prefix_trees(ids, seen, lengths), count))
    assert len(found) == count
    assert {row for each in found for row in each.rows.tolist()} == set(range(len(ids)))


def test_padding_of_a_tree_sees_itself_alone_and_nothing_sees_it() -> None:
    """Of a row that sees nothing kernels of GPUs made NaN, which is no 0 in a gradient either."""
    ids = torch.tensor([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 7], [8, 9, 0, 0, 0, 0]])
    lengths = torch.tensor([6, 6, 2])
    [found] = passes(prefix_trees(ids, torch.ones_like(ids), lengths), 1)
    short, padding = 0, slice(2, 7)
    assert found.mask is not None
    assert found.mask.shape == (2, 1, 7, 7)
    assert torch.equal(found.mask[short, 0, padding, padding], torch.eye(5, dtype=torch.bool))
    assert not found.mask[short, 0, padding, :2].any()
    assert not found.mask[short, 0, :2, padding].any()


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 16])
@given(st.integers(0, 1000), st.integers(1, 20), st.integers(2, 24))
@settings(max_examples=10)
def test_log_probabilities_of_a_tree_and_their_gradient_are_those_of_each_sequence_alone(
    random_model: RandomModel, chunk: int, hidden: bool, seed: int, count: int, width: int
) -> None:
    """What is hidden is hidden as it is for a sequence alone, a first token that sees nothing included."""
    model = random_model(seed)
    ids, seen, lengths = branching(seed, count, width)
    real = torch.arange(width) < lengths[:, None]
    wanted = real & (ids > 1)
    attention = real & seen if hidden else real
    weight = torch.linspace(-1, 1, ids.numel()).view(ids.shape)
    found = token_logprobs(model, ids, attention, wanted, chunk=chunk)
    rows = [slice(row, row + 1) for row in range(count)]
    alone = torch.cat([token_logprobs(model, ids[n], attention[n], wanted[n]) for n in rows])
    assert torch.allclose(found, alone, rtol=0, atol=1e-5)
    if wanted[:, 1:].any():
        given_, right = (
            torch.cat(
                [
                    gradient.flatten()
                    for gradient in torch.autograd.grad((x * weight).sum(), model.parameters())
                ]
            )
            for x in (found, alone)
        )
        assert float((given_ - right).norm()) <= 1e-5 * float(right.norm()) + 1e-7


def test_what_sequences_share_goes_through_the_model_once(random_model: RandomModel) -> None:
    model = random_model(0)
    read: list[int] = []
    hook = model.model.register_forward_pre_hook(
        lambda _, __, named: read.append(named["input_ids"].numel()), with_kwargs=True
    )
    ids = torch.arange(40).remainder(7).repeat(8, 1)
    ids[:, -1] = torch.arange(8)
    every = torch.ones_like(ids).bool()
    token_logprobs(model, ids, every, every)
    hook.remove()
    assert read == [47]


@torch.no_grad()
def test_where_padding_alone_is_hidden_no_mask_is_needed_for_the_same_bytes(
    random_model: RandomModel,
) -> None:
    """A GPU's flash attention takes none, and under one attention's way back was half of a step."""
    model, (ids, _, lengths) = random_model(3), branching(4, 6, 24)
    trees = prefix_trees(ids, torch.ones_like(ids), lengths, shared=False)
    for each in passes(trees, 2):
        assert each.mask is None
        long = torch.zeros(each.ids.shape, dtype=torch.bool).flatten()
        for row, places in zip(each.rows.tolist(), each.places, strict=True):
            long[places[: lengths[row]]] = True
        real = long.view(each.ids.shape)
        without, under = (
            model.model(each.ids, mask, position_ids=each.positions)[0] for mask in (None, real)
        )
        assert torch.equal(without[real], under[real])
