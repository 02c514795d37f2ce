"""reward-signal: the reward's parts are noisy, in conflict, or give groups no contrast."""

from rlvr_debug.hypotheses.base import Hypothesis, probe_finding

HYPOTHESIS = Hypothesis(
    slug="reward-signal",
    number="H05",
    kind="cause",
    priority="low",
    claim="What is trained on is not the task's reward, or the reward's parts are noisy, in conflict "
    "or led by one, so that groups lack contrast.",
    answer="The reward that your run trains on does not tell its good replies from its bad ones.",
    explanation="GRPO learns from differences within a group: where parts cancel, or what is "
    "rewarded is not what the model did, the differences are noise.",
    root_cause="A setting: weights 0.9, 1.0, 1.0, 0.4, 0.6 and 0.1 for exact match, F1, recall, "
    "precision, citation and format.",
    methods="The answer's parts alone; a binary reward; the environment's own scores.",
    diagnostics="Spread within groups; correlations of parts with the reward; the trainer's scores "
    "against the environment's.",
    success="Within-group std below 0.1 or scores that are not the environment's, and other "
    "weights give a gain.",
    invalidation="Spread and correlations are ordinary, and single parts give no gain.",
    alternatives=("group-construction", "advantage-scaling"),
    cost="3 arms",
    next_steps="Train on the one part that evaluation is about; audit the reward with an oracle "
    "and a spoiler.",
    mechanism=lambda evidence: probe_finding(evidence, "reward-audit"),
)
