"""Does an optimizer step move the weights, as far as AdamW should?"""

from __future__ import annotations

from rlvr_debug.diagnostics.weights import plan_change, weight_change
from rlvr_debug.grpo.optimizer import build_optimizer
from rlvr_debug.grpo.processes import Processes
from rlvr_debug.probes.base import Measurement, Subject, borrowed
from rlvr_debug.probes.first_update import add_gradient, contrast, first_update

__all__ = ["weights_move"]

_ERROR = 0.1


def weights_move(subject: Subject) -> Measurement:
    """One step on the case's loss, at the learning rate that follows the warm-up."""
    policy, settings = subject.policy, subject.settings
    with borrowed(policy):
        optimizer = build_optimizer(policy.trained, settings)
        add_gradient(subject, first_update(subject, contrast(subject)))
        Processes().clip(policy, settings.max_grad_norm)
        plan = plan_change(policy, optimizer)
        subject.stages.optimizer_step(optimizer)
        change = weight_change(plan, policy)
    expected = change.expected_norm
    relative = {"relative_error": change.error_norm / expected} if expected else {}
    return Measurement(
        probe="weights-move",
        measured={
            "learning_rate": change.learning_rate,
            "clipped_gradient_norm": change.clipped_norm,
            "update_norm": change.update_norm,
            "expected_update_norm": expected,
            **relative,
            "share_moved": change.moved,
        },
        bound=f"an update is expected, and the weights' differs from it by less than {_ERROR:.0%}",
        reason="AdamW's first step is known from the gradient (arXiv 1711.05101); float32 rounds it by "
        "less than 1 % down to a learning rate of 1e-6, a frozen weight or bfloat16 by 100 %",
        passed=expected > 0 and change.error_norm < _ERROR * expected,
    )
