"""Figures that look like one cause and come from another: they are extreme in the case and vanish where that other is mended."""

from __future__ import annotations

import pandas as pd

from rlvr_debug.causes import load_hypothesis
from rlvr_debug.causes.base import Hypothesis

_NAMES = {"kl_max": "largest KL", "grad_norm_max": "largest gradient norm"}
_EXTREME = 10.0  # an order of magnitude


def borrowed(hypothesis: Hypothesis, arms: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Return which other cause the hypothesis' symptom comes from, as a sentence; empty where there is none.

    arms: as arms.csv, runs: as runs.csv. The symptom, a column of `runs`, is extreme where its median over seeds is at
    least ten times the control's. It comes from another cause where a large effect of mending that one in the case
    brings it down to a tenth. Of several the lowest counts.
    """
    if hypothesis.symptom is None or hypothesis.symptom not in runs:
        return ""
    medians = runs.groupby("arm")[hypothesis.symptom].median()
    if not {"case", "control"} <= set(medians.index):
        return ""
    case, control = medians["case"], medians["control"]
    mended = arms[(arms["design"] == "repair") & (arms["status"] == "validated")]
    others = [
        (medians[row["arm"]], row)
        for row in mended.to_dict("records")
        if row["hypothesis"] != hypothesis.slug
        and load_hypothesis(row["hypothesis"]).kind == "cause"
        and medians[row["arm"]] <= case / _EXTREME
    ]
    if not case >= _EXTREME * control or not others:
        return ""
    value, row = min(others, key=lambda found: found[0])
    return (
        f"its figures come from {row['hypothesis']}: the {_NAMES[hypothesis.symptom]} is {case:.3g} in the case, "
        f"{value:.3g} with {row['arm']} mended and {control:.3g} in the control"
    )
