"""lora-weight-sync: the sampler does not get the trained weights."""

from rlvr_debug.hypotheses.base import Hypothesis, probe_finding

HYPOTHESIS = Hypothesis(
    slug="lora-weight-sync",
    number="H06",
    kind="cause",
    priority="high",
    claim="The sampler does not get the trained weights (or adapter), so that training is off "
    "policy from the first step on.",
    answer="Your sampler never gets the weights that you train.",
    explanation="Rollouts come from the base model for ever: the training reward cannot rise, and "
    "the update fits tokens that the policy would no longer write.",
    root_cause="verifiers 0.1.6, trainers/grpo_trainer.py, lines 821 to 841 (merge and sync).",
    methods="Forced sync after every step; with LoRA, full fine-tuning at a rate tuned for it "
    "in support (LoRA wants about ten times the rate, so a plain swap confounds).",
    diagnostics="After a known change of the weights: the sampler's log-probabilities against both "
    "models'.",
    success="The sampler's log-probabilities do not follow an update, and syncing gives a gain.",
    invalidation="The sampler follows the trainer, or full fine-tuning fails too.",
    alternatives=("sampler-mismatch", "optimizer-no-op"),
    cost="1 arm",
    next_steps="Compare the sampler's log-probabilities with the trainer's after every update.",
    mechanism=lambda evidence: probe_finding(evidence, "weight-sync"),
)
