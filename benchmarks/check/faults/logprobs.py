"""Faults of the policy's pass: what the model is fed, and the log-probabilities that it gives."""

from __future__ import annotations

import torch

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faults, faulty
from benchmarks.check.faults.ways import LOGPS, chosen, cold, method, normalised, plain, scored


def _fed(case, change):
    """The case in which `change` makes the attention mask of every pass, of the mask and how many places are kept."""

    def fed(trainer, usual, model, ids, mask, keep, *args, **named):
        return usual(model, ids, change(mask, keep), keep, *args, **named)

    return method(LOGPS)(case, fed)


# what the model is fed


@faulty(_fed)
def attention_from_loss_mask(mask, keep):
    hidden = mask.clone()
    hidden[:, :-keep] = 0
    return hidden


faults(
    _fed,
    attention_mask_missing=lambda mask, keep: torch.ones_like(mask),
    beginning_of_the_prompt_hidden=lambda mask, keep: mask * (mask.cumsum(1) > 12),
)


@faulty(Case.then)
def positions_begin_again(trainer):
    def positions(module, args, named):
        if torch.is_grad_enabled() and "attention_mask" in named:
            mask = named["attention_mask"]
            places = torch.arange(mask.shape[1]).expand_as(mask).clone()
            places[:, -12:] = torch.arange(12)
            named = {**named, "position_ids": places}
        return args, named

    trainer.model.register_forward_pre_hook(positions, with_kwargs=True)


@faulty(method(LOGPS))
def tokens_blanked(trainer, usual, model, ids, mask, keep, *args, **named):
    blank = ids.clone()
    blank[:, : -keep - 1 : 7] = trainer.processing_class.pad_token_id
    return usual(model, blank, mask, keep, *args, **named)


# the policy


@faulty()
def temperature_ignored(case: Case) -> Case:
    return cold(case)


def _normed(case, change):
    """The case in which `change` makes what the output layer reads when the loss is computed: of the norm's input and it."""

    def hook(module, args, hidden):
        return change(args[0], hidden) if torch.is_grad_enabled() else hidden

    return case.then(lambda trainer: trainer.model.model.norm.register_forward_hook(hook))


faults(
    _normed,
    dropout_in_logprobs=lambda given, hidden: torch.dropout(hidden, 0.1, True),
    last_layer_skipped=lambda given, hidden: given * 0.5,
)

faults(
    scored,
    logps_off_by_one=lambda trainer, logps, given: logps.roll(1, 1),
    logps_clamped=lambda trainer, logps, given: logps.clamp(min=-2),
    logps_in_bfloat16=lambda trainer, logps, given: logps.bfloat16().float(),
    logps_of_the_length=lambda trainer, logps, given: (
        logps / given[2][:, -given[3] :].sum(1, keepdim=True).clamp(min=1) * 10
    ),
)


@faulty(scored)
def logits_capped(trainer, logps, given):
    logits, wanted = plain(*given)
    return chosen((10 * (logits / 10).tanh()).log_softmax(-1), wanted)


@faulty(scored)
def labels_smoothed(trainer, logps, given):
    everything, wanted = normalised(plain(*given))
    return 0.9 * chosen(everything, wanted) + 0.1 * everything.mean(-1)


@faulty(scored)
def likeliest_tokens_alone(trainer, logps, given):
    logits, wanted = plain(*given)
    least = logits.topk(50).values[..., -1:]
    own = torch.zeros_like(logits).scatter(-1, wanted.unsqueeze(-1), 1).bool()
    return chosen(logits.where((logits >= least) | own, -torch.inf).log_softmax(-1), wanted)
