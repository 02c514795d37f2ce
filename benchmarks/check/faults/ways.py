"""Ways to put a fault's function into a case: in the place of a trainer's method, or around what it returns."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import AutoModelForCausalLM


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


def batched(name):
    """The way in which `change` makes that tensor of the batch, of the trainer, the right one and the batch."""

    def by(case, change):
        return generated(case, lambda trainer, b: {**b, name: change(trainer, b[name], b)})

    return by


def after(name, *places):
    """The way in which `change` makes what a method returns, of the trainer, it and the arguments in these places."""

    def by(case, change):
        def changed(trainer, usual, *args, **named):
            return change(trainer, usual(*args, **named), *(args[place] for place in places))

        return method(name)(case, changed)

    return by


# `change` makes the batch that was generated and scored, of the trainer and the right one
generated = after("_generate_and_score_completions")


def next_group(trainer, rows):
    """Each group's rows, with those of the next one in their place."""
    return [*rows[trainer.num_generations :], *rows[: trainer.num_generations]]


def beginning(trainer):
    """Another copy of the model, as it was before training."""
    return AutoModelForCausalLM.from_pretrained(trainer.model.config._name_or_path).float()


def the_one_before(trainer, now):
    """What this was called with before, and the first time `now`."""
    before, trainer.before = getattr(trainer, "before", now), now
    return before


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
