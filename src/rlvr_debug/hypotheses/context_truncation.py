"""context-truncation: limits on tokens cut what the answer needs."""

from rlvr_debug.hypotheses.base import Hypothesis, probe_finding

HYPOTHESIS = Hypothesis(
    slug="context-truncation",
    number="H04",
    kind="cause",
    priority="medium",
    claim="A limit on tokens cuts the supporting documents, or the reply before its answer.",
    answer="Your token limits cut off what the policy must read, or its reply before the answer.",
    explanation="A question without its documents cannot be answered, and a reply that is cut earns "
    "nothing: all rewards of a group are equal.",
    root_cause="A setting: prompts of 4,096 to 8,192 and replies of 1,024 to 2,048 tokens were "
    "tried; all paragraphs of a row have 2,281 tokens on average and 6,029 at most.",
    methods="Twice the reply's limit; the environment's own limit where the trainer has another.",
    diagnostics="Share of rows within 10 tokens of the prompt's limit; share of replies that the "
    "limit cuts.",
    success="Over 20 % of rows are within 10 tokens of the limit or over 20 % of replies are "
    "cut, and a longer limit gives a gain.",
    invalidation="Most rows are well under the limit, or a longer one gives no gain.",
    alternatives=("eval-train-mismatch", "reward-signal"),
    cost="2 arms",
    next_steps="Raise max_prompt_length and max_new_tokens, or leave long rows out.",
    mechanism=lambda evidence: probe_finding(evidence, "limits"),
)
