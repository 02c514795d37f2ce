"""Faults of the loss mask."""

from __future__ import annotations

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty
from benchmarks.check.faults.ways import generated


def _masked(case, change):
    """The case in which `change` makes the mask of the batch's other tensors."""

    def masked(trainer, batch):
        mask = batch["completion_mask"]
        return {**batch, "completion_mask": change(trainer, mask, batch).to(mask.dtype)}

    return generated(case, masked)


@faulty(_masked)
def eos_not_trained(trainer, mask, batch):
    """The token that ends a reply is left out of the loss."""
    return mask * (batch["completion_ids"] != trainer.processing_class.eos_token_id)


@faulty(_masked)
def eos_taken_for_padding(trainer, mask, batch):
    """The mask is where tokens are not padding, and padding is the token that ends a reply."""
    return batch["completion_ids"] != trainer.processing_class.pad_token_id


@faulty(_masked)
def mask_off_by_one(trainer, mask, batch):
    """The mask is shifted by a token, so that each reply's last is lost and its first counts twice with its neighbour."""
    return mask * mask.roll(-1, 1)


@faulty(_masked)
def padding_trained(trainer, mask, batch):
    """The mask is 1 everywhere, and padding is trained."""
    return mask * 0 + 1


@faulty(_masked)
def first_tokens_alone_trained(trainer, mask, batch):
    """Only the first four tokens of each reply are trained."""
    return mask * (mask.cumsum(1) <= 4)


@faulty(_masked)
def thoughts_not_trained(trainer, mask, batch):
    """What the model thinks is left out of the loss."""
    end = trainer.processing_class.convert_tokens_to_ids("<think>")
    return mask * (batch["completion_ids"] != end)


@faulty(Case.then)
def truncated_replies_trained(trainer):
    """Replies that were cut were to be left out, and are not."""
    trainer.mask_truncated_completions = False


@faulty(_masked)
def long_replies_not_trained(trainer, mask, batch):
    """Replies of 12 tokens or more are left out, which nobody asked for."""
    return mask * (mask.sum(1, keepdim=True) < 12)


@faulty(generated)
def tool_tokens_trained(trainer, batch):
    """What tools returned is trained as the model's own words."""
    return {name: value for name, value in batch.items() if name != "tool_mask"}


@faulty(generated)
def only_tool_tokens_trained(trainer, batch):
    """The mask of tools' tokens is read the wrong way round."""
    return {**batch, "tool_mask": 1 - batch["tool_mask"]}


@faulty(generated)
def replies_after_tools_not_trained(trainer, batch):
    """Only the model's first turn is trained."""
    return {**batch, "tool_mask": batch["tool_mask"].cumprod(1)}
