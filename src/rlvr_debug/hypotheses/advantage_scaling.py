"""advantage-scaling: dividing by a tiny group std makes advantages explode."""

from rlvr_debug.hypotheses.base import Hypothesis, probe_finding

HYPOTHESIS = Hypothesis(
    slug="advantage-scaling",
    number="H01",
    kind="cause",
    priority="high",
    claim="Dividing by a tiny group standard deviation turns noise into large advantages, and "
    "training oscillates.",
    answer="Your advantages are mostly noise, blown up by tiny standard deviations within groups.",
    explanation="Groups whose rewards are nearly equal carry next to no information, yet after "
    "scaling they weigh as much as any other. Rewards such as 0.62, 0.68, 0.71 and 0.65 "
    "have a standard deviation of 0.04: advantages are 25 times the differences.",
    root_cause="verifiers 0.1.3, trainers/grpo_trainer.py, line 1173.",
    methods="Train without scaling, and with an epsilon of 0.1 instead of 1e-4.",
    diagnostics="Share of the squared gradient norm from groups with std below 0.05; largest "
    "advantage.",
    success="A large share of the squared gradient norm comes from groups with std below 0.05, "
    "and not scaling gives a steadier, rising reward.",
    invalidation="That share is small, or not scaling changes nothing. The original criterion, an "
    "advantage above 10 times the reward range, cannot be met: with the unbiased std "
    "none exceeds (G-1)/sqrt(G).",
    alternatives=("reward-signal", "group-construction"),
    cost="2 arms",
    interactions=("kl-penalty",),
    next_steps="scale_rewards: none, or a larger epsilon.",
    mechanism=lambda evidence: probe_finding(evidence, "advantage-scale"),
)
