"""gradient-explosion: large gradients are clipped to noise."""

from rlvr_debug.hypotheses.base import Hypothesis, probe_finding

HYPOTHESIS = Hypothesis(
    slug="gradient-explosion",
    number="H08 (second)",
    kind="cause",
    priority="medium",
    claim="Gradients are so large that clipping leaves only noise.",
    answer="A few huge gradients drown all others in your updates.",
    explanation="One token with a huge ratio owns the whole gradient; after clipping, all others "
    "have no say.",
    root_cause="Seen with dr_grpo and beta 0.04: KL and gradient norm about 1e5, clipped to 0.1.",
    methods="A smaller and no effective clip norm; a lower learning rate; the right importance "
    "ratio.",
    diagnostics="Gradient norm before clipping, and the ratio of one policy with itself.",
    success="Norms before clipping are extreme, and lowering them gives a gain.",
    invalidation="Norms are ordinary, or lowering them gives no gain.",
    alternatives=("kl-penalty", "advantage-scaling"),
    cost="2 arms",
    prerequisites=("advantage-scaling",),
    interactions=("kl-penalty",),
    next_steps="Find the term and the tokens that the norm comes from (logprob_grad_norm/*).",
    mechanism=lambda evidence: probe_finding(evidence, "gradient-size"),
)
