"""token-masking: the loss covers tokens that the model did not write, or misses some that it wrote."""

from rlvr_debug.hypotheses.base import Hypothesis, probe_finding

HYPOTHESIS = Hypothesis(
    slug="token-masking",
    number="H02",
    kind="cause",
    priority="high",
    claim="The loss covers tokens that the model did not write, or not all that it wrote.",
    answer="Your loss counts tokens that the policy did not write, or leaves out some that it wrote.",
    explanation="Trained on what tools said, the model learns to write tool results; never trained "
    "on its end-of-turn token, it cannot learn to stop.",
    root_cause="None known in verifiers 0.1.3, whose completion mask leaves tool output out. "
    "Elsewhere: TRL PR 4975, RAGEN 59.",
    methods="The right loss mask; an audit of trained against sampled tokens.",
    diagnostics="Trained tokens by role against sampled ones.",
    success="Trained tokens differ from sampled ones, and correcting them gives a gain.",
    invalidation="The audit is clean, or single-turn training fails in the same way.",
    alternatives=("sequence-mismatch", "hidden-context"),
    cost="1 arm",
    next_steps="Build the loss mask from the sampler's own record of what it wrote.",
    mechanism=lambda evidence: probe_finding(evidence, "token-roles"),
)
