"""multi-step: single-step tasks work, multi-step ones do not."""

from rlvr_debug.hypotheses.base import Hypothesis, untested

HYPOTHESIS = Hypothesis(
    slug="multi-step",
    number="H07",
    kind="localiser",
    priority="high",
    claim="Single-step tasks are learned, multi-step ones with tools are not.",
    answer="Your trainer learns a single-step task, and fails where turns and tools are added.",
    explanation="What goes wrong only with turns and tools is invisible on a single-step task.",
    root_cause="None claimed: it says where to look.",
    methods="The case's trainer on GSM8K, beside the case. With a model that can use it, the "
    "calculator environment lies between the two.",
    diagnostics="Gains over each one's baseline, by number of turns.",
    success="The single-step task gains and the case does not: the gain falls as turns are added.",
    invalidation="The case gains, or the single-step task does not.",
    alternatives=("library-functionality",),
    cost="1 arm in another environment",
    next_steps="Look at what a turn adds: tool output, templates, masks.",
    simpler_learns=True,
    mechanism=untested,
)
