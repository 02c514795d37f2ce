"""group-construction: groups are degenerate or mixed up."""

from rlvr_debug.hypotheses.base import Hypothesis, probe_finding

HYPOTHESIS = Hypothesis(
    slug="group-construction",
    number="new",
    kind="cause",
    priority="medium",
    claim="Groups are degenerate: duplicates, wrong ids, a scrambled order, or all rewards equal.",
    answer="Your groups do not compare different replies to the same prompt.",
    explanation="Advantages that belong to other rollouts are noise, and a group of equal rewards "
    "teaches nothing.",
    root_cause="None known in verifiers 0.1.3. Elsewhere: tt-metal 46412.",
    methods="Advantages as computed; twice as many rollouts per prompt, of half as many prompts.",
    diagnostics="Prompts and ids per group; group means of advantages; share of dead groups.",
    success="The group mean of advantages is not 0, a group mixes prompts, or most groups are "
    "dead, and repairing gives a gain.",
    invalidation="Groups are sound.",
    alternatives=("reward-signal", "advantage-scaling"),
    cost="1 arm",
    next_steps="Carry the group's id with each rollout; mix difficulties.",
    mechanism=lambda evidence: probe_finding(evidence, "group-integrity"),
)
