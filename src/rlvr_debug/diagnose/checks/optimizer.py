"""The optimizer: learning rate, gradient, whether the weights move, and how far the policy went."""

from __future__ import annotations

import numpy as np

from rlvr_debug.diagnose.checks.base import LARGE, MILD, STOPS, Check, Shown, trend
from rlvr_debug.diagnose.logs import Log

__all__ = ["CHECKS"]

_NO_RATE = 1e-8
_ENDED = 0.25
_NO_GRADIENT = 0.5
_NORMS = (10.0, 100.0)
_GROWTH = 10.0
_KL = 1.0
_KL_AT_FIRST = 0.01
_CLIPPED = 0.3
_ENTROPY_UP = 3.0
_LOSS_OF_REWARD = 0.25
_Z = 3.0


def learning_rate_zero(log: Log) -> Shown | None:
    rates = log.series("learning_rate")
    # a warm-up begins at 0, so that a single row says nothing
    if rates.size < 2:
        return None
    largest = float(rates.max())
    measured = {"largest learning rate": largest}
    if largest <= 0:
        return Shown(
            STOPS, measured, "The learning rate is 0 at every step: nothing is trained.", 1
        )
    if largest <= _NO_RATE:
        text = (
            f"The learning rate is at most {largest:.1e}: in 1,000 steps no weight moves by 1e-5."
        )
        return Shown(STOPS, measured, text, 0.9)
    return Shown(0, measured, f"The learning rate reaches {largest:.2g}.")


def schedule_ended(log: Log) -> Shown | None:
    rates = log.series("learning_rate")
    if rates.size < 4 or rates.max() <= _NO_RATE:
        return None
    live = np.flatnonzero(rates > 0.01 * rates.max())
    share = 1 - (int(live[-1]) + 1) / rates.size
    measured = {"share of steps after the schedule's end": share}
    if share >= _ENDED:
        text = f"The schedule ended early: the last {share:.0%} of rows have a learning rate of at most 1 % of its peak."
        return Shown(LARGE, measured, text, share)
    return Shown(0, measured, "The learning rate is not spent before the end.")


def gradient_zero(log: Log) -> Shown | None:
    norms = log.series("grad_norm")
    if norms.size < 2:
        return None
    share = float((norms == 0).mean())
    measured = {"share of rows with gradient norm 0": share}
    if share >= _NO_GRADIENT:
        strength = STOPS if share >= 0.9 else LARGE
        return Shown(
            strength, measured, f"The gradient norm is exactly 0 in {share:.0%} of rows.", share
        )
    return Shown(0, measured, f"The gradient is 0 in {share:.0%} of rows.")


def weights_still(log: Log) -> Shown | None:
    moved = float(np.median(log.series("weights_moved")))
    measured = {"share of weights that move": moved}
    if moved < 0.01:
        text = f"{moved:.2%} of the weights are another number after a step: updates are lost."
        return Shown(STOPS if moved == 0 else LARGE, measured, text, 1 - moved)
    return Shown(0, measured, f"{moved:.0%} of the weights move in a step.")


def gradient_not_finite(log: Log) -> Shown | None:
    bad = {name: log.nonfinite.get(name, 0) for name in ("grad_norm", "loss", "kl")}
    rows = sum(bad.values())
    measured = {
        f"rows with {name} not finite": float(count) for name, count in bad.items() if count
    }
    if not rows:
        return Shown(0, {"rows not finite": 0.0}, "Gradient norm, loss and KL are finite.")
    what = ", ".join(f"{name} in {count} rows" for name, count in bad.items() if count)
    return Shown(STOPS, measured, f"NaN or infinity was logged: {what}.", 1.0)


def gradient_large(log: Log) -> Shown | None:
    norms = log.series("grad_norm")
    if norms.size < 4:
        return None
    median, largest = float(np.median(norms)), float(norms.max())
    measured = {"median gradient norm": median, "largest gradient norm": largest}
    if median >= _NORMS[0]:
        strength = LARGE if median >= _NORMS[1] else MILD
        text = f"The gradient norm is {median:.3g} in the median: a clip at 1 leaves a {1 / median:.1%} of each step."
        return Shown(strength, measured, text, min(1.0, np.log10(median) / 6))
    return Shown(0, measured, f"The gradient norm is {median:.3g} in the median.")


def gradient_grows(log: Log) -> Shown | None:
    norms = log.series("grad_norm")
    norms = norms[norms > 0]
    if norms.size < 12:
        return None
    third = norms.size // 3
    first, last = float(np.median(norms[:third])), float(np.median(norms[-third:]))
    measured = {"median of the first third": first, "median of the last third": last}
    if last >= _GROWTH * first:
        text = f"The gradient norm grows {last / first:.0f}-fold, from {first:.3g} to {last:.3g}."
        return Shown(LARGE, measured, text, min(1.0, np.log10(last / first) / 6))
    return Shown(0, measured, f"The gradient norm goes from {first:.3g} to {last:.3g}.")


def reward_collapses(log: Log) -> Shown | None:
    rewards = log.series("reward")
    if rewards.size < 9:
        return None
    start, late = rewards[:2], rewards[-(rewards.size // 3) :]
    first, last = float(start.mean()), float(late.mean())
    measured = {"first two rows": first, "last third": last}
    lost = (first - last) / abs(first) if first else 0.0
    if lost >= _LOSS_OF_REWARD and late.max() < start.min():
        text = (
            f"The training reward falls from {first:.3g} to {last:.3g}: updates destroy the policy."
        )
        return Shown(LARGE if lost >= 0.5 else MILD, measured, text, min(1.0, lost))
    return Shown(0, measured, "The training reward does not collapse.")


def update_too_large(log: Log) -> Shown | None:
    shares = log.series("clipped")
    if shares.size < 2:
        return None
    share = float(np.median(shares))
    measured = {"median share of clipped tokens": share}
    if share >= _CLIPPED:
        text = (
            f"{share:.0%} of the tokens' ratios are clipped: each batch changes the policy too far."
        )
        return Shown(MILD, measured, text, share)
    return Shown(0, measured, f"{share:.1%} of the tokens' ratios are clipped.")


def entropy_rises(log: Log) -> Shown | None:
    found = trend(log.series("entropy"))
    if found is None or found.first < 0:
        return None
    measured = {"first third": found.first, "last third": found.last}
    if found.z >= _Z and found.last >= _ENTROPY_UP * found.first and found.last >= 1:
        text = f"Entropy rises from {found.first:.3g} to {found.last:.3g} nats: what is sampled turns into noise."
        return Shown(MILD, measured, text, min(1.0, found.last / 10))
    return Shown(0, measured, f"Entropy goes from {found.first:.3g} to {found.last:.3g} nats.")


def kl_explodes(log: Log) -> Shown | None:
    kl = log.series("kl")
    if kl.size < 2:
        return None
    late, spike = float(np.median(kl[-max(1, kl.size // 3) :])), float(kl.max())
    measured = {"median of the last third, nats": late, "largest, nats": spike}
    if late >= _KL:
        text = f"KL to the reference is {late:.3g} nats per token in the last third (largest {spike:.3g})."
        return Shown(LARGE, measured, text, min(1.0, np.log10(1 + late) / 6))
    return Shown(0, measured, f"KL stays at {late:.3g} nats per token (largest {spike:.3g}).")


def kl_at_first(log: Log) -> Shown | None:
    if "kl" not in log.steps or not len(log.steps) or log.steps.index[0] > 1:
        return None
    first = float(log.steps["kl"].iloc[0])
    if not np.isfinite(first):
        return None
    if first >= _KL_AT_FIRST:
        text = f"KL is {first:.3g} nats before any update: the reference is another model than the policy."
        return Shown(MILD, {"KL at the first step": first}, text, min(1.0, first))
    return Shown(0, {"KL at the first step": first}, "KL begins at about 0.")


def kl_stays_zero(log: Log) -> Shown | None:
    kl = log.series("kl")
    if kl.size < 4:
        return None
    share = float((kl == 0).mean())
    if share == 1 and (log.series("learning_rate") > 0).any():
        text = (
            "KL is exactly 0 at every step although the learning rate is not: either there is no reference "
            "(beta 0), or the weights do not move."
        )
        return Shown(MILD, {"share of rows with KL 0": share}, text, 0.1)
    return Shown(0, {"share of rows with KL 0": share}, "KL moves.")


CHECKS = (
    Check(
        "learning-rate-zero",
        "optimizer-no-op",
        (("learning_rate",),),
        "largest learning rate above 1e-8",
        "AdamW moves a weight by about the learning rate: 1,000 steps at 1e-8 are 1e-5",
        learning_rate_zero,
        ("kl-stays-zero", "weights-still", "schedule-ended"),
    ),
    Check(
        "schedule-ended",
        "optimizer-no-op",
        (("learning_rate",),),
        "less than 25 % of rows after the last learning rate above 1 % of its peak",
        "a linear schedule spends 1 % of its steps there, a cosine one 6 %",
        schedule_ended,
    ),
    Check(
        "gradient-zero",
        "optimizer-no-op",
        (("grad_norm",),),
        "gradient norm 0 in less than half of the rows",
        "then less than half of the sampling is for nothing",
        gradient_zero,
        ("kl-stays-zero", "weights-still"),
    ),
    Check(
        "weights-still",
        "optimizer-no-op",
        (("weights_moved",),),
        "at least 1 % of the weights move in a step",
        "bfloat16 storage rounded the updates of all 768 weights away in workofart/ml-by-hand PR 85",
        weights_still,
        ("kl-stays-zero",),
    ),
    Check(
        "kl-stays-zero",
        "optimizer-no-op",
        (("kl", "learning_rate"),),
        "KL above 0 at some step",
        "weights that moved are another policy than the reference",
        kl_stays_zero,
    ),
    Check(
        "not-finite",
        "gradient-explosion",
        (("grad_norm",), ("loss",)),
        "no NaN and no infinity in gradient norm, loss or KL",
        "one such update makes every weight NaN",
        gradient_not_finite,
        ("reward-collapses", "dead-groups", "equal-rewards", "constant-reward", "gradient-zero"),
    ),
    Check(
        "gradient-large",
        "gradient-explosion",
        (("grad_norm",),),
        "median gradient norm below 10 (large from 100)",
        "TRL, verl and transformers clip at 1 unless told otherwise: above 10, nine tenths of each step is cut",
        gradient_large,
        ("reward-collapses",),
    ),
    Check(
        "gradient-grows",
        "gradient-explosion",
        (("grad_norm",),),
        "median norm of the last third below 10 times that of the first",
        "an order of magnitude: what a clip cuts off becomes most of each step",
        gradient_grows,
    ),
    Check(
        "reward-collapses",
        "gradient-explosion",
        (("reward",),),
        "last third of the reward not 25 % below the first two rows (large from 50 %), or some of it above them",
        "learning can stall, but only updates take away what the policy could do",
        reward_collapses,
        ("dead-groups", "equal-rewards", "constant-reward", "gradient-zero", "few-tool-calls"),
    ),
    Check(
        "update-too-large",
        "gradient-explosion",
        (("clipped",),),
        "less than 30 % of tokens clipped in the median",
        "arXiv 1707.06347's clipping is meant for the tail; RLinf PR 1534 sees 5 % of pure numerics",
        update_too_large,
    ),
    Check(
        "entropy-rises",
        "gradient-explosion",
        (("entropy",),),
        "entropy not three times its start and above 1 nat",
        "a policy that learns becomes surer; one that is destroyed does not",
        entropy_rises,
    ),
    Check(
        "kl-explodes",
        "kl-penalty",
        (("kl",),),
        "median KL of the last third below 1 nat per token",
        "at 1 nat the policy's own tokens are e times as likely as the reference's; the original failure had 1e5. "
        "Single steps say nothing: one of 183 nats stands in a healthy run of tests/logs",
        kl_explodes,
        (
            "gradient-large",
            "gradient-grows",
            "reward-collapses",
            "entropy-rises",
            "update-too-large",
        ),
    ),
    Check(
        "kl-at-first",
        "kl-penalty",
        (("kl",),),
        "KL below 0.01 nats at step 1",
        "policy and reference are one model there; 1e-2 of rounding in bfloat16 is 5e-5 of KL (TRL 3194: above 0)",
        kl_at_first,
    ),
)
