"""Batches of ms-swift, rows with prompt and completion in one, read as TRL's columns."""

from types import SimpleNamespace
from typing import Any

import torch

from rlvr_debug.recorders.keeping import stacked
from rlvr_debug.recorders.trl.objects import PLACES, ROW, columns, joined, kept_batch, placed

# prompts 1.., completions 2..; 3 is a tool's turn, 0 is padding
ROWS = [([11, 12, 13], [21, 22]), ([14], [23, 31, 24]), ([15, 16], [25])]


def micro(rows: list[tuple[list[int], list[int]]], first: int) -> dict[str, Any]:
    width = max(len(prompt + completion) for prompt, completion in rows)
    ids = torch.tensor([(p + c + [0] * width)[:width] for p, c in rows])
    wrote = ids // 10 == 2
    last = int((width - wrote.int().argmax(1)).max())
    logps = ids[:, -last:] / 100
    told = SimpleNamespace(
        completion_mask=wrote[:, -last:],
        advantages=logps * 2,
        old_per_token_logps=logps,
        ref_per_token_logps=None,
        rollout_per_token_logps=None,
    )
    numbers = torch.arange(first, first + len(rows))
    inputs = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    return {"model_inputs": inputs, "grpo_batch": told, ROW: numbers}


def test_each_row_of_a_list_is_read_as_its_prompt_and_its_completion() -> None:
    batch = kept_batch(joined([columns(micro(ROWS[:2], 0)), columns(micro(ROWS[2:], 2))]))
    assert batch.rows is not None
    assert batch.old is not None
    assert batch.rows.tolist() == [0, 1, 2]
    for number, (prompt, completion) in enumerate(ROWS):
        real, there = batch.prompt_mask[number].bool(), batch.completion_mask[number].bool()
        assert batch.prompt_ids[number][real].tolist() == prompt
        assert batch.completion_ids[number][there].tolist() == completion
        wrote = batch.completion_ids[number][batch.loss_mask[number]]
        assert wrote.tolist() == [token for token in completion if token // 10 == 2]
        expected = torch.tensor(completion) / 100
        torch.testing.assert_close(batch.old[number][there], expected)
        torch.testing.assert_close(batch.advantages[number][there], 2 * expected)
        assert not batch.old[number][~there].any()


def test_a_gradient_of_what_a_loss_reads_is_that_of_the_completions_tokens() -> None:
    told = micro(ROWS[:2], 0)
    read = torch.zeros_like(told["grpo_batch"].old_per_token_logps, requires_grad=True)
    own = columns(told)
    (placed(read, own[PLACES]) * own["completion_ids"]).sum().backward()
    assert read.grad is not None
    wanted = (own["completion_ids"] * own["completion_mask"]).float()
    torch.testing.assert_close(placed(read.grad, own[PLACES]), wanted)


def test_what_has_trls_columns_is_left_as_it_is() -> None:
    told = {"prompt_ids": torch.ones(2, 3)}
    assert columns(told) is told
    assert joined([told]) is told
    assert placed(told["prompt_ids"], None) is told["prompt_ids"]


def test_rows_of_other_lengths_are_padded_on_the_side_that_a_batch_is_padded_on() -> None:
    parts = [torch.tensor([[1, 2]]), torch.tensor([[3]])]
    assert stacked(parts, "prompt_ids").tolist() == [[1, 2], [0, 3]]
    assert stacked(parts, "completion_ids", 9).tolist() == [[1, 2], [3, 9]]
