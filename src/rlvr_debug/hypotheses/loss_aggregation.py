"""loss-aggregation: the loss' denominator depends on how the batch is cut, or length biases the update."""

from rlvr_debug.hypotheses.base import Hypothesis, probe_finding

HYPOTHESIS = Hypothesis(
    slug="loss-aggregation",
    number="new",
    kind="cause",
    priority="medium",
    claim="The loss' denominator depends on the split into micro-batches or ranks, or the "
    "length of replies biases the update.",
    answer="Your loss weighs tokens by how the batch is split, or by how long a reply is.",
    explanation="With a denominator per micro-batch, a token's weight depends on its neighbours: "
    "short replies are pushed harder than long ones.",
    root_cause="A setting in verifiers 0.1.3 (grpo, bnpo and dr_grpo were tried). Elsewhere: verl "
    "PR 906, TRL 3021.",
    methods="The aggregations dr_grpo and dapo, whose denominators are global.",
    diagnostics="The gradient of one batch, cut into micro-batches and whole.",
    success="The gradient changes with the split, and a global denominator gives a gain.",
    invalidation="The gradient is the same however the batch is cut.",
    alternatives=("gradient-explosion", "token-masking"),
    cost="2 arms",
    next_steps="Divide by counts over the whole batch, all ranks together.",
    mechanism=lambda evidence: probe_finding(evidence, "micro-batch-invariance"),
)
