"""How many trainings a study of the sequential design will take, from simulated ones."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import numpy as np

from rlvr_debug.verdicts.looks import NOTHING, Looked
from rlvr_debug.verdicts.rule import ABSENT, PRESENT
from rlvr_debug.verdicts.sequential import LARGEST, run_out

_STUDIES = 40  # for each hypothesis that may be the cause
# as arms of the default study have them: what learning gains, and spreads over seeds of arms that learn and of others
_GAIN, _LEARNING, _STILL = 0.25, 0.05, 0.015


def expected_trainings(looked: Looked) -> int:
    """Return the mean over studies in which one hypothesis is the cause, each in turn, and the check sees it.

    All phases are run.
    """
    names, owners, layout = looked.layout(looked.highest_phase, NOTHING)
    if not owners:
        return looked.trainings(replace(looked, gated=False).first().seeds)
    cause = np.repeat(np.arange(len(owners)), _STUDIES)[:, None]
    own = layout.owner == cause
    # what is mended learns, and so does a control with a part that does no harm
    learns = np.where(layout.alone, ~own, own)
    whole = np.broadcast_to(
        [False, True], (len(cause), 2)
    )  # the case does not, and the control does
    learns = np.concatenate([whole, learns], -1)
    present = np.where(np.arange(len(owners)) == cause, PRESENT, ABSENT)
    noise = np.random.default_rng(0).standard_normal((*learns.shape, LARGEST))
    gains = (
        np.where(learns, _GAIN, 0.0)[..., None]
        + noise * np.where(learns, _LEARNING, _STILL)[..., None]
    )
    # greedy as sampled
    has = run_out(layout, np.stack([gains, gains], -1), present, looked.bar)
    every = ("case", "control", *names)
    targets = (dict(zip(every, map(int, each), strict=True)) for each in has)
    return round(
        fmean(looked.trainings(looked.counts(looked.highest_phase, each)) for each in targets)
    )
