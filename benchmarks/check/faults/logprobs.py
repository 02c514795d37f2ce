"""Faults of the policy's pass: what the model is fed, and the log-probabilities that it gives."""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty
from benchmarks.check.faults.scoring import chosen, normalised, plain, scored

_MISMATCH, _HIDDEN = ("sampler-mismatch",), ("hidden-context",)


def _fed(case, change):
    """The case in which `change` makes the attention mask of every pass, of the mask and how many places are kept."""

    class Trainer(case.trainer):
        def _get_per_token_logps_and_entropies(self, model, ids, mask, keep, *args, **named):
            told = super()._get_per_token_logps_and_entropies
            return told(model, ids, change(mask, keep), keep, *args, **named)

    return replace(case, trainer=Trainer)


# what the model is fed


@faulty(
    "model inputs",
    origin="library",
    source="verifiers 0.1.2 to 0.1.6.post0",
    causes=_HIDDEN,
)
def attention_from_loss_mask(case: Case) -> Case:
    """The loss mask is handed to the model as its attention mask: it does not see the prompt."""

    def replies(mask, keep):
        hidden = mask.clone()
        hidden[:, :-keep] = 0
        return hidden

    return _fed(case, replies)


@faulty("model inputs", origin="known", source="TRL PR 2708", causes=_HIDDEN)
def attention_mask_missing(case: Case) -> Case:
    """The model reads padding too."""
    return _fed(case, lambda mask, _: torch.ones_like(mask))


@faulty("model inputs", origin="own", causes=_HIDDEN)
def beginning_of_the_prompt_hidden(case: Case) -> Case:
    """The first tokens of each prompt are masked, as by a window that is too short."""
    return _fed(case, lambda mask, _: mask * (mask.cumsum(1) > 12))


@faulty("model inputs", origin="own", causes=_HIDDEN)
def positions_begin_again(case: Case) -> Case:
    """Positions of the reply begin again at 0."""

    def restarted(trainer):
        def positions(module, args, named):
            if torch.is_grad_enabled() and "attention_mask" in named:
                mask = named["attention_mask"]
                places = torch.arange(mask.shape[1]).expand_as(mask).clone()
                places[:, -12:] = torch.arange(12)
                named = {**named, "position_ids": places}
            return args, named

        trainer.model.register_forward_pre_hook(positions, with_kwargs=True)

    return case.then(restarted)


@faulty("model inputs", origin="own", causes=("sequence-mismatch",))
def tokens_blanked(case: Case) -> Case:
    """Every seventh token of the prompt is replaced by padding when the loss is computed."""

    class Trainer(case.trainer):
        def _get_per_token_logps_and_entropies(self, model, ids, mask, keep, *args, **named):
            blank = ids.clone()
            blank[:, : -keep - 1 : 7] = self.processing_class.pad_token_id
            told = super()._get_per_token_logps_and_entropies
            return told(model, blank, mask, keep, *args, **named)

    return replace(case, trainer=Trainer)


# the policy


@faulty(
    "policy log-probabilities",
    origin="library",
    source="TRL PR 3029, NeMo-RL PR 935, open-instruct PR 1678",
    causes=_MISMATCH,
    config={"temperature": 1.5},
)
def temperature_ignored(case: Case) -> Case:
    """Log-probabilities are at temperature 1, and samples at 1.5."""

    def cold(trainer, logps, given):
        return chosen(*normalised(plain(*given)))

    return scored(case, cold)


@faulty("policy log-probabilities", origin="benchmark", source="TRL PR 3234", causes=_MISMATCH)
def dropout_in_logprobs(case: Case) -> Case:
    """A tenth of what the output layer reads is left out."""

    def thinned(trainer):
        def drop(module, args, hidden):
            return torch.dropout(hidden, 0.1, True) if torch.is_grad_enabled() else hidden

        trainer.model.model.norm.register_forward_hook(drop)

    return case.then(thinned)


@faulty("policy log-probabilities", origin="own", causes=_MISMATCH)
def logps_off_by_one(case: Case) -> Case:
    """Log-probabilities stand one token too far."""
    return scored(case, lambda _, logps, given: logps.roll(1, 1))


@faulty("policy log-probabilities", origin="own", causes=_MISMATCH)
def logits_capped(case: Case) -> Case:
    """Logits are capped at 10 by a tanh that the model was not trained with."""

    def capped(trainer, logps, given):
        logits, wanted = plain(*given)
        return chosen((10 * (logits / 10).tanh()).log_softmax(-1), wanted)

    return scored(case, capped)


@faulty("policy log-probabilities", origin="own", causes=_MISMATCH)
def labels_smoothed(case: Case) -> Case:
    """A tenth of each token's log-probability is the mean over the vocabulary."""

    def smoothed(trainer, logps, given):
        everything, wanted = normalised(plain(*given))
        return 0.9 * chosen(everything, wanted) + 0.1 * everything.mean(-1)

    return scored(case, smoothed)


@faulty("policy log-probabilities", origin="own", causes=_MISMATCH)
def likeliest_tokens_alone(case: Case) -> Case:
    """The softmax is over the 50 likeliest tokens and the one that was sampled."""

    def cut(trainer, logps, given):
        logits, wanted = plain(*given)
        least = logits.topk(50).values[..., -1:]
        own = torch.zeros_like(logits).scatter(-1, wanted.unsqueeze(-1), 1).bool()
        return chosen(logits.where((logits >= least) | own, -torch.inf).log_softmax(-1), wanted)

    return scored(case, cut)


@faulty("policy log-probabilities", origin="own", causes=_MISMATCH)
def logps_clamped(case: Case) -> Case:
    """Log-probabilities are at least -2, against infinities."""
    return scored(case, lambda _, logps, given: logps.clamp(min=-2))


@faulty("policy log-probabilities", origin="own", causes=_MISMATCH, precision="float32")
def logps_in_bfloat16(case: Case) -> Case:
    """Log-probabilities are rounded to bfloat16."""
    return scored(case, lambda _, logps, given: logps.bfloat16().float())


@faulty("policy log-probabilities", origin="own", causes=_MISMATCH)
def logps_of_the_length(case: Case) -> Case:
    """Log-probabilities are divided by the length of their reply."""

    def divided(trainer, logps, given):
        return logps / given[2][:, -given[3] :].sum(1, keepdim=True).clamp(min=1) * 10

    return scored(case, divided)


@faulty("policy log-probabilities", origin="own", causes=_MISMATCH)
def last_layer_skipped(case: Case) -> Case:
    """The norm before the output layer is left out when the loss is computed."""

    def skipped(trainer):
        def without(module, args, hidden):
            return args[0] * 0.5 if torch.is_grad_enabled() else hidden

        trainer.model.model.norm.register_forward_hook(without)

    return case.then(skipped)
