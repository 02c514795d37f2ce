"""Ways to put a fault's function into a case: in the place of a trainer's method, or around what it returns."""

from __future__ import annotations

from dataclasses import replace

import torch


def method(name):
    """The way that calls `change` in the place of a method: with the trainer, the usual method and its arguments."""

    def by(case, change):
        class Trainer(case.trainer):
            pass

        def instead(self, *args, **named):
            return change(self, getattr(super(Trainer, self), name), *args, **named)

        instead.__qualname__ = f"Trainer.{name}"  # whose code it is, as the check says
        setattr(Trainer, name, instead)
        return replace(case, trainer=Trainer)

    return by


def generated(case, change):
    """The case in which `change` makes the batch that was generated and scored, of the trainer and the right one."""
    by = method("_generate_and_score_completions")
    return by(case, lambda trainer, usual, inputs: change(trainer, usual(inputs)))


def losing(case, change):
    """The case whose loss is computed of `change` of the trainer and the right inputs."""
    by = method("_compute_loss")
    return by(case, lambda trainer, usual, model, inputs: usual(model, change(trainer, inputs)))


def cold(case, which="policy"):
    """The case whose log-probabilities, as in scored, are at temperature 1."""
    return scored(case, lambda _, logps, given: chosen(*normalised(plain(*given))), which)


def plain(model, ids, mask, keep, temperature=1.0):
    """Logits and wanted tokens of the last `keep` places, without what the trainer does to them."""
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1][:, -keep:]
    return logits.float() / temperature, ids[:, -keep:]


def chosen(logps, wanted):
    return logps.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)


LOGPS = "_get_per_token_logps_and_entropies"


def scored(case, change, which="policy"):
    """The case in which `change` makes the log-probabilities of the policy, or those that are old or the reference's."""

    def changed(trainer, usual, model, ids, mask, keep, *args, **named):
        logps, *rest = usual(model, ids, mask, keep, *args, **named)
        kept = "reference" if model is trainer.ref_model else "old"
        if which == ("policy" if torch.is_grad_enabled() else kept):
            logps = change(trainer, logps, (model, ids, mask, keep))
        return logps, *rest

    return method(LOGPS)(case, changed)


def normalised(logits_and_wanted):
    logits, wanted = logits_and_wanted
    return logits.log_softmax(-1), wanted
