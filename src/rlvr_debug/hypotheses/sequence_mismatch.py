"""sequence-mismatch: the token sequence that is trained on is not the one that was sampled."""

from rlvr_debug.hypotheses.base import Hypothesis, probe_finding

HYPOTHESIS = Hypothesis(
    slug="sequence-mismatch",
    number="new",
    kind="cause",
    priority="critical",
    claim="The trained token sequence is not the sampled one: the template is rendered "
    "without tools, or generation prompts are missing.",
    answer="Your run trains on another token sequence than the one that your policy sampled.",
    explanation="Log-probabilities are computed in a context that the model never had when it "
    "sampled, so that the update pushes another distribution than the one that acts.",
    root_cause="verifiers 0.1.3, envs/environment.py, line 651 (prompt without tools) and lines "
    "683 to 691 (tool turns without the generation prompt).",
    methods="Train on the sampled ids as they are, for the prompt and for tool turns.",
    diagnostics="Token diff of sampled and trained sequences.",
    success="A token diff between sampled and trained sequences is not empty, and mending it "
    "gives a gain.",
    invalidation="The sequences are identical.",
    alternatives=("hidden-context", "token-masking"),
    cost="2 arms",
    interactions=("hidden-context",),
    next_steps="Train on the sampled ids as they are; never render a conversation again.",
    mechanism=lambda evidence: probe_finding(evidence, "sequence-diff"),
)
