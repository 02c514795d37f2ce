"""hidden-context: when the loss is computed, the policy sees neither prompt nor tool results."""

from rlvr_debug.hypotheses.base import Hypothesis, probe_finding

HYPOTHESIS = Hypothesis(
    slug="hidden-context",
    number="new",
    kind="cause",
    priority="critical",
    claim="When the loss is computed, the policy's forward pass sees neither the question nor "
    "what the tools returned.",
    answer="Your policy never sees the prompt when the loss is computed.",
    explanation="What depends on the context cannot be learned, so that the reward stays where it "
    "was; what does not (a format, a habit) can. Ratio and clip metrics look healthy, "
    "because old and new log-probabilities come from the same wrong forward pass.",
    root_cause="verifiers 0.1.2 to 0.1.6.post0, trainers/grpo_trainer.py (0.1.3: lines 1083 to "
    "1106 and 1187 to 1194): prompt_mask + completion_mask, the loss mask, is passed as "
    "attention_mask.",
    methods="The padding mask as attention mask.",
    diagnostics="Change of trained log-probabilities when the prompt or a tool's result is "
    "replaced.",
    success="The trained log-probabilities do not react to the prompt or to tool results, and "
    "restoring the attention mask gives a gain.",
    invalidation="The context-sensitivity probe passes.",
    alternatives=("sequence-mismatch", "sampler-mismatch"),
    cost="1 arm",
    interactions=("sequence-mismatch",),
    next_steps="Pass the padding mask as attention mask; then compare sampler and trainer "
    "log-probabilities on the same tokens.",
    mechanism=lambda evidence: probe_finding(evidence, "context-sensitivity"),
)
