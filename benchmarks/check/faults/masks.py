"""Faults of the loss mask."""

from __future__ import annotations

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faults, faulty
from benchmarks.check.faults.ways import batched, generated

_masked = batched("completion_mask")

faults(
    _masked,
    eos_not_trained=lambda trainer, mask, batch: (
        mask * (batch["completion_ids"] != trainer.processing_class.eos_token_id)
    ),
    eos_taken_for_padding=lambda trainer, mask, batch: (
        batch["completion_ids"] != trainer.processing_class.pad_token_id
    ).to(mask.dtype),
    thoughts_not_trained=lambda trainer, mask, batch: (
        mask
        * (batch["completion_ids"] != trainer.processing_class.convert_tokens_to_ids("<think>"))
    ),
    mask_off_by_one=lambda trainer, mask, batch: mask * mask.roll(-1, 1),
    padding_trained=lambda trainer, mask, batch: mask * 0 + 1,
    first_tokens_alone_trained=lambda trainer, mask, batch: mask * (mask.cumsum(1) <= 4),
    long_replies_not_trained=lambda trainer, mask, batch: mask * (mask.sum(1, keepdim=True) < 12),
)


@faulty(Case.then)
def truncated_replies_trained(trainer):
    trainer.mask_truncated_completions = False


@faulty(generated)
def tool_tokens_trained(trainer, batch):
    return {name: value for name, value in batch.items() if name != "tool_mask"}


faults(
    batched("tool_mask"),
    only_tool_tokens_trained=lambda trainer, mask, batch: 1 - mask,
    replies_after_tools_not_trained=lambda trainer, mask, batch: mask.cumprod(1),
)
