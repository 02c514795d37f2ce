"""kl-penalty: the KL term is wrong in direction, estimator or weight."""

from rlvr_debug.hypotheses.base import Hypothesis, probe_finding

HYPOTHESIS = Hypothesis(
    slug="kl-penalty",
    number="H03",
    kind="cause",
    priority="medium",
    claim="The KL term is wrong in direction, estimator or weight, and holds the policy at "
    "the base model.",
    answer="Your KL term is wrong, and it holds the policy at the base model.",
    explanation="A reversed or overweighted KL term outweighs the reward's gradient; where "
    "log-probabilities of the policy collapse, exp(ref - policy) explodes and clipping "
    "leaves noise.",
    root_cause="verifiers 0.1.3, trainers/grpo_trainer.py, line 1231.",
    methods="Beta 0; the estimators k1 and k2; the penalty in the reward; beta 0 without scaled "
    "advantages.",
    diagnostics="The estimator against the analytic KL, and its gradient against the enumerated "
    "one, on exact tabular policies.",
    success="Training works at beta 0 and fails above, and the term's expectation or gradient "
    "is not that of the KL divergence.",
    invalidation="The formula matches the analytic KL, or beta 0 fails too. The original outcome was "
    "partial: the formula was right, and beta 0 mended the gradients but not the "
    "reward. k3 is right as an estimate; as a loss, its gradient is not that of the "
    "reverse KL (arXiv 2506.09477).",
    alternatives=("hidden-context", "gradient-explosion"),
    cost="4 arms",
    prerequisites=("advantage-scaling",),
    interactions=("advantage-scaling", "lora-weight-sync"),
    next_steps="Compare the estimator with the analytic KL (scripts/verify_kl_direction.py); lower "
    "beta.",
    mechanism=lambda evidence: probe_finding(evidence, "kl-estimator", "kl-gradient"),
)
