"""optimizer-no-op: the weights do not move."""

from rlvr_debug.hypotheses.base import Hypothesis, probe_finding

HYPOTHESIS = Hypothesis(
    slug="optimizer-no-op",
    number="new",
    kind="cause",
    priority="medium",
    claim="The weights do not move: a frozen adapter, a tiny learning rate, bfloat16 rounding "
    "or the schedule.",
    answer="Your optimizer does not move the weights.",
    explanation="Loss and gradient norm look healthy while nothing is learned.",
    root_cause="None known in verifiers 0.1.3. Elsewhere: TRL 6700 (an optimizer without "
    "parameters).",
    methods="Three times the learning rate; the optimizer step as it should be.",
    diagnostics="The change of the weights in one step against what AdamW makes of the gradient.",
    success="Weights do not move, or only by rounding, and letting them move gives a gain.",
    invalidation="Weights move as the optimizer says.",
    alternatives=("lora-weight-sync", "eval-train-mismatch"),
    cost="1 arm",
    next_steps="Compare weights before and after a step; keep a float32 copy of them; raise the "
    "learning rate.",
    mechanism=lambda evidence: probe_finding(evidence, "weights-move"),
)
