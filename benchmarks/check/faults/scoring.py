"""What faults of log-probabilities are made with."""

from __future__ import annotations

from dataclasses import replace

import torch

__all__ = ["chosen", "normalised", "plain", "scored"]


def plain(model, ids, mask, keep, temperature=1.0):
    """Logits and wanted tokens of the last `keep` places, without what the trainer does to them."""
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1][:, -keep:]
    return logits.float() / temperature, ids[:, -keep:]


def chosen(logps, wanted):
    return logps.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)


def scored(case, change, which="policy"):
    """The case in which `change` makes the log-probabilities of the policy, or those that are old or the reference's."""

    class Trainer(case.trainer):
        def _get_per_token_logps_and_entropies(self, model, ids, mask, keep, *args, **named):
            told = super()._get_per_token_logps_and_entropies
            logps, *rest = told(model, ids, mask, keep, *args, **named)
            mine = (
                "policy"
                if torch.is_grad_enabled()
                else "reference"
                if model is self.ref_model
                else "old"
            )
            if mine == which:
                logps = change(self, logps, (model, ids, mask, keep))
            return logps, *rest

    return replace(case, trainer=Trainer)


def normalised(logits_and_wanted):
    logits, wanted = logits_and_wanted
    return logits.log_softmax(-1), wanted
