"""sampler-mismatch: sampler and trainer disagree on log-probabilities of the same tokens."""

from rlvr_debug.hypotheses.base import Hypothesis, probe_finding

HYPOTHESIS = Hypothesis(
    slug="sampler-mismatch",
    number="new",
    kind="cause",
    priority="high",
    claim="Sampler and trainer disagree on the log-probabilities of the same tokens: "
    "precision, temperature or top-p.",
    answer="Your sampler and your trainer give the same tokens different probabilities.",
    explanation="The update then is off policy from its first step, with a bias that no clipping "
    "sees, because old log-probabilities are the trainer's.",
    root_cause="None known in verifiers 0.1.3. Elsewhere: TRL PR 3029 (temperature), and the "
    "engines' different kernels.",
    methods="Truncated importance sampling with a cap of 2; the right log-probabilities.",
    diagnostics="Ratio and KL at learning rate 0, with tails.",
    success="Ratio tails at learning rate 0 are wide, and correcting them gives a gain.",
    invalidation="The ratio is 1 within tolerance.",
    alternatives=("lora-weight-sync", "sequence-mismatch"),
    cost="1 arm",
    interactions=("lora-weight-sync",),
    next_steps="Same temperature and precision on both sides; else importance_sampling_cap.",
    mechanism=lambda evidence: probe_finding(evidence, "sampler-ratio"),
)
