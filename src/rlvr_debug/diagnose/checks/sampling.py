"""Sampling: limits, tools, the sampler beside the trainer, trained tokens, evaluation, and length."""

from __future__ import annotations

import json

import numpy as np

from rlvr_debug.diagnose.checks.base import LARGE, MILD, STOPS, Check, Shown, from_the_start, trend
from rlvr_debug.diagnose.logs import Log

__all__ = ["CHECKS"]

_CUT = (0.2, 0.5, 0.9)
_GAP = (0.05, 0.5)
_PROB_GAP = 0.01
_FACTOR = 1.05
_RATIO = 0.1
_GAP_GROWTH = 5.0
_FEW_CALLS = 0.5
_FAILED_CALLS = 0.5
_LENGTH = 1.5
_Z = 3.0
_HELDOUT = 0.1


def truncation(log: Log) -> Shown | None:
    share = from_the_start(log.series("truncated"))
    measured = {"share of replies that the limit cuts": share}
    if share >= _CUT[0]:
        strength = STOPS if share >= _CUT[2] else LARGE if share >= _CUT[1] else MILD
        limit = log.series("length_max")
        at = f", at {limit.max():.0f} tokens" if limit.size else ""
        text = f"The token limit cuts {share:.0%} of the replies{at}: what comes after is never scored."
        return Shown(strength, measured, text, share)
    return Shown(0, measured, f"The token limit cuts {share:.0%} of the replies.")


def unanswered_calls(log: Log) -> Shown | None:
    """Conversations whose last message is a tool call: something ended them before the tool could answer."""
    table = log.completions
    ends = table["completion"].map(_ends_in_call)
    known = ends.notna()
    if not known.any():
        return None
    by_step = ends[known].astype(float).groupby(table.loc[known, "step"].fillna(0)).mean()
    share = from_the_start(by_step.to_numpy(dtype=np.float64))
    measured = {"share of conversations that end in a tool call": share}
    if share >= _CUT[0]:
        strength = STOPS if share >= _CUT[2] else LARGE if share >= _CUT[1] else MILD
        text = f"{share:.0%} of the conversations end in a tool call without its answer: a limit cuts them there."
        return Shown(strength, measured, text, share)
    return Shown(0, measured, f"{share:.0%} of the conversations end in a tool call.")


def _ends_in_call(completion: str) -> bool | None:
    """None of what is no list of messages."""
    if not completion.startswith("["):
        return None
    try:
        messages = json.loads(completion)
    except (ValueError, RecursionError):
        return None
    last = messages[-1] if isinstance(messages, list) and messages else None
    return bool(last.get("tool_calls")) if isinstance(last, dict) else None


def prompt_truncation(log: Log) -> Shown | None:
    share = float(log.series("prompt_truncated").mean())
    measured = {"share of prompts at their limit": share}
    if share >= _CUT[0]:
        text = f"{share:.0%} of the prompts fill their limit: the question or its documents may be cut."
        return Shown(LARGE if share >= _CUT[1] else MILD, measured, text, share)
    return Shown(0, measured, f"{share:.0%} of the prompts fill their limit.")


def few_tool_calls(log: Log) -> Shown | None:
    found = trend(log.series("tool_calls"))
    if found is None:
        return None
    measured = {"first third": found.first, "last third": found.last}
    if found.last == 0 or (found.z <= -_Z and found.last <= _FEW_CALLS * found.first):
        text = f"Tool calls per rollout go from {found.first:.2g} to {found.last:.2g}: the tools are not used."
        return Shown(MILD, measured, text, 0.5)
    return Shown(
        0, measured, f"Tool calls per rollout go from {found.first:.2g} to {found.last:.2g}."
    )


def tool_failures(log: Log) -> Shown | None:
    share = float(log.series("tool_failures").mean())
    measured = {"share of failed calls": share}
    if share >= _FAILED_CALLS:
        text = f"{share:.0%} of the tool calls fail."
        return Shown(MILD, measured, text, share)
    return Shown(0, measured, f"{share:.0%} of the tool calls fail.")


def _gap(log: Log) -> tuple[str, float, float, str] | None:
    """The distance of sampler and trainer that is logged: name, value, its bound, and the quantity."""
    if (gap := log.series("sampler_gap")).size:
        return (
            "mean |difference| of log-probabilities, nats",
            float(np.median(gap)),
            _GAP[0],
            "sampler_gap",
        )
    if (gap := log.series("sampler_prob_gap")).size:
        return (
            "mean |difference| of probabilities",
            float(np.median(gap)),
            _PROB_GAP,
            "sampler_prob_gap",
        )
    if (gap := log.series("sampler_factor")).size:
        return (
            "mean exp(|difference|), less 1",
            float(np.median(gap)) - 1,
            _FACTOR - 1,
            "sampler_factor",
        )
    if (gap := log.series("sampler_kl")).size:
        return (
            "KL of sampler and trainer, nats",
            float(np.median(np.abs(gap))),
            _GAP[0],
            "sampler_kl",
        )
    if (gap := log.series("sampler_ratio")).size:
        off = float(np.median(np.abs(gap - 1)))
        return "mean ratio of probabilities, less 1", off, _RATIO, "sampler_ratio"
    return None


def sampler_gap(log: Log) -> Shown | None:
    found = _gap(log)
    if found is None:
        return None
    name, value, bound, _ = found
    if value >= bound:
        text = f"Sampler and trainer disagree on the same tokens: {name} {value:.3g}."
        return Shown(LARGE, {name: value}, text, min(1.0, value / (100 * bound)))
    return Shown(0, {name: value}, f"Sampler and trainer agree: {name} {value:.2g}.")


def sampler_gap_grows(log: Log) -> Shown | None:
    found = _gap(log)
    if found is None:
        return None
    name, _, bound, quantity = found
    values = log.series(quantity)
    values = (
        np.abs(values - 1) if quantity in ("sampler_factor", "sampler_ratio") else np.abs(values)
    )
    change = trend(values)
    if change is None:
        return None
    measured = {"first third": change.first, "last third": change.last}
    if change.z >= _Z and change.last >= max(bound, _GAP_GROWTH * change.first):
        text = f"The sampler drifts from the trainer ({name}: {change.first:.2g}, then {change.last:.2g}): old weights."
        return Shown(LARGE, measured, text, 1.0)
    return Shown(0, measured, "The distance of sampler and trainer does not grow.")


def other_context(log: Log) -> Shown | None:
    gaps = log.series("sampler_gap")
    first = float(gaps[: max(1, gaps.size // 3)].mean())
    measured = {"mean |difference| at first, nats": first}
    if first >= _GAP[1]:
        text = f"From the first steps the trainer gives the sampled tokens {first:.2g} nats more or less than the sampler."
        return Shown(LARGE, measured, text, min(1.0, first / 3))
    return Shown(0, measured, "At first, trainer and sampler see the same tokens alike.")


def trained_tokens(log: Log) -> Shown | None:
    both = log.steps[["sampled_tokens", "trained_tokens"]].dropna()
    if not len(both):
        return None
    sampled, trained = float(both["sampled_tokens"].sum()), float(both["trained_tokens"].sum())
    off = abs(trained - sampled) / max(sampled, 1.0)
    measured = {"tokens trained over sampled": trained / max(sampled, 1.0)}
    if off > 0.001:
        text = f"{trained:.0f} tokens are trained on where {sampled:.0f} were sampled."
        return Shown(LARGE, measured, text, min(1.0, off))
    return Shown(0, measured, "As many tokens are trained on as were sampled.")


def heldout_stays(log: Log) -> Shown | None:
    training, heldout = trend(log.series("reward")), log.series("heldout")
    if training is None or heldout.size < 2:
        return None
    scale = max(abs(training.last), abs(training.first), 1e-300)
    gain = float(heldout[-1] - heldout[0])
    measured = {"gain in training": training.change, "gain held out": gain}
    if training.z >= _Z and training.change >= _HELDOUT * scale and gain <= 0.25 * training.change:
        text = f"The training reward gains {training.change:.2g} and the held-out score {gain:.2g}."
        return Shown(LARGE, measured, text, 1.0)
    return Shown(0, measured, "Training and held-out scores do not part.")


def length_drifts(log: Log) -> Shown | None:
    lengths, rewards = trend(log.series("length")), trend(log.series("reward"))
    if lengths is None or rewards is None or lengths.first <= 0:
        return None
    measured = {"length at first": lengths.first, "length at last": lengths.last}
    if lengths.z >= _Z and lengths.last >= _LENGTH * lengths.first and rewards.z < _Z:
        text = f"Replies grow from {lengths.first:.0f} to {lengths.last:.0f} tokens while the reward does not rise."
        return Shown(MILD, measured, text, min(1.0, lengths.last / lengths.first / 10))
    return Shown(0, measured, f"Replies go from {lengths.first:.0f} to {lengths.last:.0f} tokens.")


CHECKS = (
    Check(
        "truncation",
        "context-truncation",
        (("truncated",),),
        "less than 20 % of the replies cut from the start on (large from 50 %, stops from 90 %)",
        "the criterion of context-truncation; autocontext PR 1067 and TRL PR 7039 report 97 to 100 %",
        truncation,
        (
            "dead-groups",
            "equal-rewards",
            "constant-reward",
            "gradient-zero",
            "tiny-deviations",
            "few-tool-calls",
        ),
    ),
    Check(
        "unanswered-calls",
        "context-truncation",
        (("completions",),),
        "less than 20 % of the conversations end in a tool call from the start on (large from 50 %, stops from 90 %)",
        "as truncation. TRL 1.16.0 drops a tool's answer that does not fit max_completion_length and ends there, which its "
        "clipped_ratio does not count",
        unanswered_calls,
        (
            *(
                "dead-groups",
                "equal-rewards",
                "constant-reward",
                "gradient-zero",
                "tiny-deviations",
            ),
            "duplicates",
        ),
    ),
    Check(
        "prompt-truncation",
        "context-truncation",
        (("prompt_truncated",),),
        "less than 20 % of the prompts at their limit",
        "the criterion of context-truncation",
        prompt_truncation,
    ),
    Check(
        "few-tool-calls",
        "multi-step",
        (("tool_calls",),),
        "tool calls above 0, and not half of what they were (3 standard errors)",
        "a rollout without calls is a single step",
        few_tool_calls,
    ),
    Check(
        "tool-failures",
        "multi-step",
        (("tool_failures",),),
        "less than half of the calls fail",
        "then less than half of what tools could say is heard",
        tool_failures,
    ),
    Check(
        "sampler-gap",
        "sampler-mismatch",
        (
            ("sampler_gap",),
            ("sampler_prob_gap",),
            ("sampler_factor",),
            ("sampler_kl",),
            ("sampler_ratio",),
        ),
        "mean |difference| of log-probabilities below 0.05 nats (of probabilities 0.01; factor 1.05; mean ratio "
        "within 0.9 and 1.1)",
        "rounding in bfloat16 is 0.01 (docs/diagnostics.md); verl's FAQ says 0.01; TRL 6789 found a ratio of 0.896",
        sampler_gap,
    ),
    Check(
        "other-context",
        "hidden-context",
        (("sampler_gap",),),
        "below 0.5 nats in the first third",
        "ten times what precision explains; the attention mask of verifiers 0.1.3 gives 1.4",
        other_context,
        ("sampler-gap",),
    ),
    Check(
        "other-sequence",
        "sequence-mismatch",
        (("sampler_gap",),),
        "below 0.5 nats in the first third",
        "as other-context, from which no log tells it",
        other_context,
        ("sampler-gap",),
    ),
    Check(
        "sampler-drifts",
        "lora-weight-sync",
        (
            ("sampler_gap",),
            ("sampler_prob_gap",),
            ("sampler_factor",),
            ("sampler_kl",),
            ("sampler_ratio",),
        ),
        "the gap is not 5 times its start and above sampler-gap's bound",
        "TRL 5312: from 0.015 to 0.201 within three steps with old weights",
        sampler_gap_grows,
        ("sampler-gap",),
    ),
    Check(
        "trained-tokens",
        "token-masking",
        (("sampled_tokens", "trained_tokens"),),
        "as many tokens trained as sampled, within 0.1 %",
        "every sampled token counts and no other; a mask that is meant is one too",
        trained_tokens,
    ),
    Check(
        "heldout-stays",
        "eval-train-mismatch",
        (("reward", "heldout"),),
        "held-out gain above a quarter of the training gain, where that is 10 % of the reward",
        "what is learned should be seen where it is measured",
        heldout_stays,
    ),
    Check(
        "length-drifts",
        "loss-aggregation",
        (("length", "reward"),),
        "replies not 1.5 times as long while the reward does not rise",
        "arXiv 2503.20783: a denominator per reply favours long wrong ones",
        length_drifts,
    ),
)
