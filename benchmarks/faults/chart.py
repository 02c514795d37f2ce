"""The confusion matrix: what was planted, and what was answered first."""

from __future__ import annotations

import altair as alt
import pandas as pd

__all__ = ["confusion_chart"]

_CELL = 34


def confusion_chart(found: pd.DataFrame) -> alt.TopLevelMixin:
    """found: planted, answered and cases. Right answers stand in green."""
    data = found.copy()
    data["right"] = [
        answered in planted.split(" + ")
        or (answered == "none" and planted in ("healthy", "no hypothesis"))
        for planted, answered in zip(data["planted"], data["answered"], strict=True)
    ]
    last = ["no hypothesis", "healthy"]
    rows = [name for name in sorted(set(data["planted"])) if name not in last]
    rows += [name for name in last if name in set(data["planted"])]
    columns = [name for name in sorted(set(data["answered"])) if name != "none"]
    columns += ["none"] if "none" in set(data["answered"]) else []
    base = alt.Chart(data).encode(
        x=alt.X(
            "answered:N",
            title="answered first",
            sort=columns,
            axis=alt.Axis(orient="top", labelAngle=-50, labelLimit=220),
        ),
        y=alt.Y("planted:N", title="planted", sort=rows, axis=alt.Axis(labelLimit=320)),
    )
    cells = base.mark_rect(stroke="white").encode(
        color=alt.Color(
            "right:N",
            title=None,
            scale=alt.Scale(domain=[True, False], range=["#009E73", "#D55E00"]),
            legend=alt.Legend(labelExpr="datum.value ? 'right' : 'wrong'", orient="bottom"),
        )
    )
    numbers = base.mark_text(color="white", fontWeight="bold").encode(text="cases:Q")
    return alt.layer(cells, numbers).properties(
        width=_CELL * len(columns), height=_CELL * 0.75 * len(rows)
    )
