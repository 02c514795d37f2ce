"""kl-penalty: the KL term is wrong in direction, estimator or weight."""

from rlvr_debug.hypotheses.base import Hypothesis, probe_finding

HYPOTHESIS = Hypothesis(
    slug="kl-penalty",
    number="H03",
    kind="cause",
    priority="medium",
    claim="The KL term is wrong in direction, estimator or weight, and holds the policy at the base "
    "model.",
    explanation="A reversed or overweighted KL term outweighs the reward's gradient; where log-"
    "probabilities of the policy collapse, exp(ref - policy) explodes and clipping leaves noise.",
    root_cause="verifiers 0.1.3, trainers/grpo_trainer.py, line 1231.",
    success="Training works at beta 0 and fails above, and the stage's expectation is not the KL "
    "divergence or its weight is too large.",
    invalidation="The formula matches the analytic KL, and beta 0 gives no gain.",
    alternatives="hidden-context, gradient-explosion",
    next_steps="Compare the estimator with the analytic KL; lower beta.",
    mechanism=lambda evidence: probe_finding(evidence, "kl-estimator"),
)
