"""Charts of a study, as SVG. Colours are Okabe and Ito's, safe for colour-blind readers."""

from __future__ import annotations

from pathlib import Path

import altair as alt
import pandas as pd
import vl_convert

from rlvr_debug.files import write_text

__all__ = ["effects_chart", "learning_chart", "write_svg"]

_CASE, _CONTROL, _ARM = "#D55E00", "#0072B2", "#009E73"
_FONT = "sans-serif"


def _role(arm: str) -> str:
    if arm == "case":
        return "case"
    return "control" if arm.endswith("control") else "intervention"


_COLOURS = alt.Scale(domain=["case", "control", "intervention"], range=[_CASE, _CONTROL, _ARM])


def learning_chart(curves: pd.DataFrame, order: list[str]) -> alt.TopLevelMixin:
    """Training reward by step, one panel per arm: mean over seeds, band from lowest to highest seed.

    Smoothed over 5 steps. curves: arm, environment, seed, step, reward. order: arms as shown.
    """
    data = curves.copy()
    data["reward"] = data.groupby(["arm", "seed"])["reward"].transform(
        lambda values: values.rolling(5, min_periods=1).mean()
    )
    data["role"] = data["arm"].map(_role)
    data["panel"] = data["arm"]
    band = data.groupby(["panel", "role", "step"], as_index=False)["reward"].agg(
        ["min", "mean", "max"]
    )
    base = alt.Chart(band).encode(x=alt.X("step:Q", title="step"))
    colour = alt.Color("role:N", scale=_COLOURS, title=None)
    layered = alt.layer(
        base.mark_area(opacity=0.25).encode(
            y=alt.Y("min:Q", title="training reward", scale=alt.Scale(zero=False)),
            y2="max:Q",
            color=colour,
        ),
        base.mark_line(strokeWidth=2).encode(y="mean:Q", color=colour),
    ).properties(width=150, height=110)
    return layered.facet(facet=alt.Facet("panel:N", title=None, sort=order), columns=5).configure(
        font=_FONT
    )


def effects_chart(arms: pd.DataFrame, minimum_effect: float) -> alt.TopLevelMixin:
    """Each arm's gain in held-out reward minus the case's, with its interval, sampled and greedy.

    arms: as arms.csv. The dashed line is the smallest effect that counts.
    """
    tested = arms.dropna(subset=["effect"])
    parts = [
        tested.assign(
            decoding="sampled", value=tested["effect"], low=tested["ci_low"], high=tested["ci_high"]
        ),
        tested.assign(
            decoding="greedy",
            value=tested["effect_greedy"],
            low=tested["greedy_low"],
            high=tested["greedy_high"],
        ),
    ]
    data = pd.concat(parts)[["arm", "decoding", "value", "low", "high"]]
    order = list(tested.sort_values("effect", ascending=False)["arm"])
    base = alt.Chart(data).encode(
        y=alt.Y("arm:N", sort=order, title=None),
        yOffset=alt.YOffset("decoding:N", sort=["sampled", "greedy"]),
        color=alt.Color(
            "decoding:N",
            scale=alt.Scale(domain=["sampled", "greedy"], range=[_CONTROL, "#E69F00"]),
            title=None,
        ),
    )
    title = "gain in held-out reward over the case"
    marks = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=title), x2="high:Q")
    points = base.mark_point(filled=True, size=60).encode(x=alt.X("value:Q", title=title))
    lines = [
        alt.Chart(pd.DataFrame({"x": [x]}))
        .mark_rule(color="#555555", strokeDash=dash)
        .encode(x="x:Q")
        for x, dash in ((0.0, [1, 0]), (minimum_effect, [4, 4]))
    ]
    return (
        alt.layer(*lines, marks, points)
        .properties(width=460, height=alt.Step(18))
        .configure(font=_FONT)
    )


def write_svg(chart: alt.TopLevelMixin, path: Path) -> None:
    write_text(path, vl_convert.vegalite_to_svg(chart.to_json()))
