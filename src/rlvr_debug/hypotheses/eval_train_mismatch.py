"""eval-train-mismatch: evaluation and training render, score or save differently."""

from rlvr_debug.hypotheses.base import Hypothesis, probe_finding

HYPOTHESIS = Hypothesis(
    slug="eval-train-mismatch",
    number="H08",
    kind="cause",
    priority="critical",
    claim="Evaluation and training render, parse, score or load differently, so that what is "
    "learned is not what is measured.",
    answer="Your evaluation measures something else than what your run trains.",
    explanation="A model that was trained on other prompts or another reward, or that is saved "
    "without what it learned, cannot gain where it is measured.",
    root_cause="None known in verifiers 0.1.3. Elsewhere: prime-rl PR 1456, unsloth 2009 (adapters "
    "lost at saving). Seen: mathematics with a python tool, 22 % right in evaluation "
    "and 0 % in training.",
    methods="The environment's own scores in training; the trained weights saved.",
    diagnostics="Training and evaluation prompts token by token; the same rollouts scored by both "
    "paths; saved against trained weights.",
    success="The same rollouts score differently, or prompts or weights differ, and making them "
    "equal gives a gain.",
    invalidation="They are identical, to the token and the reward.",
    alternatives=("sequence-mismatch", "reward-signal"),
    cost="1 arm",
    next_steps="Make training and evaluation share one function for each.",
    mechanism=lambda evidence: probe_finding(evidence, "train-eval-equality"),
)
