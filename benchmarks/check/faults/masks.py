"""Faults of the loss mask."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty

_CAUSES = ("token-masking",)


def _masked(case, change):
    """The case in which `change` makes the mask of the batch's other tensors."""

    class Trainer(case.trainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            output["completion_mask"] = change(self, output["completion_mask"], output).to(
                output["completion_mask"].dtype
            )
            return output

    return replace(case, trainer=Trainer)


@faulty("loss mask", origin="library", source="RAGEN 59", causes=_CAUSES)
def eos_not_trained(case: Case) -> Case:
    """The token that ends a reply is left out of the loss."""

    def without(trainer, mask, batch):
        return mask * (batch["completion_ids"] != trainer.processing_class.eos_token_id)

    return _masked(case, without)


@faulty(
    "loss mask", origin="known", source="TRL 4974, PR 4970", causes=_CAUSES, setting="pad-is-eos"
)
def eos_taken_for_padding(case: Case) -> Case:
    """The mask is where tokens are not padding, and padding is the token that ends a reply."""

    def unlike_padding(trainer, mask, batch):
        return batch["completion_ids"] != trainer.processing_class.pad_token_id

    return _masked(case, unlike_padding)


@faulty("loss mask", origin="own", causes=_CAUSES)
def mask_off_by_one(case: Case) -> Case:
    """The mask is shifted by a token, so that each reply's last is lost and its first counts twice with its neighbour."""
    return _masked(case, lambda _, mask, batch: mask * mask.roll(-1, 1))


@faulty("loss mask", origin="own", causes=_CAUSES)
def padding_trained(case: Case) -> Case:
    """The mask is 1 everywhere, and padding is trained."""
    return _masked(case, lambda _, mask, batch: mask * 0 + 1)


@faulty("loss mask", origin="own", causes=_CAUSES)
def first_tokens_alone_trained(case: Case) -> Case:
    """Only the first four tokens of each reply are trained."""
    return _masked(case, lambda _, mask, batch: mask * (mask.cumsum(1) <= 4))


@faulty("loss mask", origin="own", causes=_CAUSES)
def thoughts_not_trained(case: Case) -> Case:
    """What the model thinks is left out of the loss."""

    def spoken(trainer, mask, batch):
        end = trainer.processing_class.convert_tokens_to_ids("<think>")
        return mask * (batch["completion_ids"] != end)

    return _masked(case, spoken)


@faulty(
    "loss mask",
    origin="own",
    causes=("context-truncation",),
    config={"mask_truncated_completions": True},
)
def truncated_replies_trained(case: Case) -> Case:
    """Replies that were cut were to be left out, and are not."""

    def kept(trainer):
        trainer.mask_truncated_completions = False

    return case.then(kept)


@faulty("loss mask", origin="own", causes=_CAUSES)
def long_replies_not_trained(case: Case) -> Case:
    """Replies of 12 tokens or more are left out, which nobody asked for."""
    return _masked(case, lambda _, mask, batch: mask * (mask.sum(1, keepdim=True) < 12))


def _tool_mask(case, change):
    class Trainer(case.trainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            return change(output)

    return replace(case, trainer=Trainer)


@faulty(
    "loss mask",
    origin="library",
    source="TRL PR 4975",
    causes=_CAUSES,
    setting="tools",
    since="1.0.0",
)
def tool_tokens_trained(case: Case) -> Case:
    """What tools returned is trained as the model's own words."""
    return _tool_mask(case, lambda batch: {k: v for k, v in batch.items() if k != "tool_mask"})


@faulty("loss mask", origin="own", causes=_CAUSES, setting="tools", since="1.0.0")
def only_tool_tokens_trained(case: Case) -> Case:
    """The mask of tools' tokens is read the wrong way round."""
    return _tool_mask(case, lambda batch: {**batch, "tool_mask": 1 - batch["tool_mask"]})


@faulty("loss mask", origin="own", causes=_CAUSES, setting="tools", since="1.0.0")
def replies_after_tools_not_trained(case: Case) -> Case:
    """Only the model's first turn is trained."""
    return _tool_mask(case, lambda batch: {**batch, "tool_mask": batch["tool_mask"].cumprod(1)})
