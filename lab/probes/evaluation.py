"""Do training and evaluation have the same prompts, scores and weights?"""

from __future__ import annotations

import torch

from lab.probes.base import Measurement, Subject, borrowed, measurement, shift_weights
from lab.probes.first_update import trained_scores
from rlvr_debug.sampling.rollouts import Rollout, truncated

__all__ = ["train_eval_equality"]

_SCORE = 1e-6
_WEIGHT = 1e-5
_STEP = 1e-2


def train_eval_equality(subject: Subject) -> Measurement:
    prompts = [r.segments[0].ids != _evaluated_prompt(subject, r) for r in subject.rollouts]
    scores, _ = trained_scores(subject)
    gaps = [
        _score_gap(subject, rollout, dict(parts))
        for rollout, parts in zip(subject.rollouts, scores, strict=True)
    ]
    missing, weights = _saved(subject)
    count = len(subject.rollouts)
    return measurement(
        "train-eval-equality",
        {
            "share_of_prompts_that_differ": sum(prompts) / count,
            "share_of_prompts_cut": sum(r.prompt_cut > 0 for r in subject.rollouts) / count,
            "share_of_scores_that_differ": sum(gap > _SCORE for gap in gaps) / count,
            "largest_score_difference": max(gaps),
            "tensors_not_saved": missing,
            "largest_weight_difference": weights,
        },
        not any(prompts) and max(gaps) <= _SCORE and not missing and weights <= _WEIGHT,
        weight=_WEIGHT,
        step=_STEP,
    )


def _evaluated_prompt(subject: Subject, rollout: Rollout) -> list[int]:
    """What evaluation shows the model, cut where training cuts."""
    settings, environment = subject.settings, subject.environment
    ids = subject.chat.prompt(environment.messages(rollout.row), environment.tools)
    return truncated(ids, settings.max_prompt_length, settings.truncation_side)


def _score_gap(subject: Subject, rollout: Rollout, trained: dict[str, float]) -> float:
    """The largest difference of a part, or of the reward, from evaluation's."""
    environment = subject.environment
    parts = environment.score(rollout.row, rollout.transcript)
    parts["reward"] = environment.reward(rollout.row, parts)
    trained["reward"] = environment.reward(rollout.row, trained)
    return max(abs(trained.get(name, float("inf")) - part) for name, part in parts.items())


def _saved(subject: Subject) -> tuple[int, float]:
    """After a random step: tensors that saving left out, and the largest difference of the others."""
    with borrowed(subject.policy), torch.no_grad():
        shift_weights(subject.policy, _STEP)
        trained = subject.policy.weights()
        saved = subject.policy.saved_as(subject.stages.saved_weights(subject.policy))
        gaps = [float((saved[n] - w).abs().max()) for n, w in trained.items() if n in saved]
    return len(trained) - len(gaps), max(gaps, default=0.0)
