"""library-functionality: the trainer fails on a simple single-step task as well."""

from rlvr_debug.hypotheses.base import Hypothesis, untested

HYPOTHESIS = Hypothesis(
    slug="library-functionality",
    number="H06 (second)",
    kind="localiser",
    priority="high",
    claim="The trainer is broken for everything: the same trainer does not learn GSM8K either.",
    answer="Your trainer does not learn the simplest task either.",
    explanation="A failure on the simplest task would point at the library and away from the task.",
    root_cause="None claimed: it says where to look.",
    methods="The case's trainer on GSM8K, single-turn.",
    diagnostics="Its gain over its own baseline.",
    success="GSM8K does not improve over its baseline.",
    invalidation="GSM8K improves (the original outcome).",
    alternatives=("multi-step",),
    cost="1 arm in another environment",
    next_steps="Where GSM8K improves, look at what only multi-step rollouts have: tools, turns, "
    "long contexts.",
    mechanism=untested,
)
