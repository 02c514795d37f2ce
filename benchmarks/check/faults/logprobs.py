"""Faults of the policy's pass: what the model is fed, and the log-probabilities that it gives."""

from __future__ import annotations

import torch

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty
from benchmarks.check.faults.ways import LOGPS, chosen, cold, method, normalised, plain, scored


def _fed(case, change):
    """The case in which `change` makes the attention mask of every pass, of the mask and how many places are kept."""

    def fed(trainer, usual, model, ids, mask, keep, *args, **named):
        return usual(model, ids, change(mask, keep), keep, *args, **named)

    return method(LOGPS)(case, fed)


# what the model is fed


@faulty(_fed)
def attention_from_loss_mask(mask, keep):
    """The loss mask is handed to the model as its attention mask: it does not see the prompt."""
    hidden = mask.clone()
    hidden[:, :-keep] = 0
    return hidden


@faulty(_fed)
def attention_mask_missing(mask, keep):
    """The model reads padding too."""
    return torch.ones_like(mask)


@faulty(_fed)
def beginning_of_the_prompt_hidden(mask, keep):
    """The first tokens of each prompt are masked, as by a window that is too short."""
    return mask * (mask.cumsum(1) > 12)


@faulty(Case.then)
def positions_begin_again(trainer):
    """Positions of the reply begin again at 0."""

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
    """Every seventh token of the prompt is replaced by padding when the loss is computed."""
    blank = ids.clone()
    blank[:, : -keep - 1 : 7] = trainer.processing_class.pad_token_id
    return usual(model, blank, mask, keep, *args, **named)


# the policy


@faulty()
def temperature_ignored(case: Case) -> Case:
    """Log-probabilities are at temperature 1, and samples at 1.5."""
    return cold(case)


def _normed(case, change):
    """The case in which `change` makes what the output layer reads when the loss is computed: of the norm's input and it."""

    def hook(module, args, hidden):
        return change(args[0], hidden) if torch.is_grad_enabled() else hidden

    return case.then(lambda trainer: trainer.model.model.norm.register_forward_hook(hook))


@faulty(_normed)
def dropout_in_logprobs(given, hidden):
    """A tenth of what the output layer reads is left out."""
    return torch.dropout(hidden, 0.1, True)


@faulty(scored)
def logps_off_by_one(trainer, logps, given):
    """Log-probabilities stand one token too far."""
    return logps.roll(1, 1)


@faulty(scored)
def logits_capped(trainer, logps, given):
    """Logits are capped at 10 by a tanh that the model was not trained with."""
    logits, wanted = plain(*given)
    return chosen((10 * (logits / 10).tanh()).log_softmax(-1), wanted)


@faulty(scored)
def labels_smoothed(trainer, logps, given):
    """A tenth of each token's log-probability is the mean over the vocabulary."""
    everything, wanted = normalised(plain(*given))
    return 0.9 * chosen(everything, wanted) + 0.1 * everything.mean(-1)


@faulty(scored)
def likeliest_tokens_alone(trainer, logps, given):
    """The softmax is over the 50 likeliest tokens and the one that was sampled."""
    logits, wanted = plain(*given)
    least = logits.topk(50).values[..., -1:]
    own = torch.zeros_like(logits).scatter(-1, wanted.unsqueeze(-1), 1).bool()
    return chosen(logits.where((logits >= least) | own, -torch.inf).log_softmax(-1), wanted)


@faulty(scored)
def logps_clamped(trainer, logps, given):
    """Log-probabilities are at least -2, against infinities."""
    return logps.clamp(min=-2)


@faulty(scored)
def logps_in_bfloat16(trainer, logps, given):
    """Log-probabilities are rounded to bfloat16."""
    return logps.bfloat16().float()


@faulty(scored)
def logps_of_the_length(trainer, logps, given):
    """Log-probabilities are divided by the length of their reply."""
    return logps / given[2][:, -given[3] :].sum(1, keepdim=True).clamp(min=1) * 10


@faulty(_normed)
def last_layer_skipped(given, hidden):
    """The norm before the output layer is left out when the loss is computed."""
    return given * 0.5
