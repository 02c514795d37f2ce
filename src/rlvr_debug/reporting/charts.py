"""Charts of a study. Colours are Okabe and Ito's, safe for colour-blind readers; dashes tell lines apart without."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import altair as alt
import pandas as pd
import vl_convert

from rlvr_debug.files import write_text

__all__ = ["curves_chart", "effects_chart", "learning_chart", "write_svg"]

_COLOURS = alt.Scale(
    domain=["case", "control", "random_reward", "repair", "alone"],
    range=["#D55E00", "#0072B2", "#56B4E9", "#009E73", "#CC79A7"],
)
_DECODING = alt.Scale(domain=["sampled", "greedy"], range=["#0072B2", "#E69F00"])
_FONT = "sans-serif"
_COLUMNS = 5
_SMOOTHED = 5  # steps
_SHOWN = 80  # steps of a line: a long run is thinned, for the report holds many charts
# the same in every chart of curves: a colour and a dash
_LINES = {"case": ("#D55E00", [1, 0]), "control": ("#0072B2", [2, 2])}
_OTHER_COLOURS = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_OTHER_DASHES = ([8, 3], [6, 2, 2, 2], [4, 4], [10, 2], [3, 1], [12, 4, 2, 4])


def curves_chart(
    curves: pd.DataFrame,
    labels: Mapping[str, str],
    metric: str,
    title: str,
    size: tuple[int, int],
    scale: Literal["linear", "symlog"] = "linear",
) -> alt.TopLevelMixin:
    """`metric` by step of a few arms in one panel: mean over seeds, band from the lowest to the highest.

    Rewards are smoothed, as in learning_chart. labels: of each arm as shown, in order; size: of the panel.
    """
    data = curves[curves["arm"].isin(list(labels))].dropna(subset=[metric]).copy()
    if metric == "reward":
        data[metric] = _smoothed(data)
    groups = _thinned(data).groupby(["arm", "step"], as_index=False)[metric]
    band = groups.agg(["min", "mean", "max"]).round(6)
    band["line"] = band["arm"].map(labels)
    order = list(labels.values())
    others = zip(itertools.cycle(_OTHER_COLOURS), itertools.cycle(_OTHER_DASHES), strict=False)
    looks = [_LINES.get(arm) or next(others) for arm in labels]
    colours, dashes = [colour for colour, _ in looks], [dash for _, dash in looks]
    # what colour and dash share becomes one legend
    legend = alt.Legend(
        orient="top",
        columns=2,
        labelLimit=size[0],
        symbolType="stroke",
        symbolSize=500,
        symbolOpacity=1,
        symbolStrokeWidth=2.5,
    )
    axis = alt.Y("min:Q", title=title, scale=alt.Scale(type=scale, zero=False))
    base = alt.Chart(band).encode(
        x=alt.X("step:Q", title="training step", axis=alt.Axis(tickMinStep=1, format="d")),
        color=alt.Color(
            "line:N", scale=alt.Scale(domain=order, range=colours), title=None, legend=legend
        ),
    )
    areas = base.mark_area(opacity=0.18, strokeWidth=0).encode(y=axis, y2="max:Q")
    lines = base.mark_line(strokeWidth=2.5, point={"size": 14}).encode(
        y="mean:Q",
        strokeDash=alt.StrokeDash(
            "line:N", scale=alt.Scale(domain=order, range=dashes), title=None, legend=legend
        ),
        tooltip=[
            alt.Tooltip("line:N", title="arm"),
            alt.Tooltip("step:Q"),
            *(alt.Tooltip(f"{name}:Q", format=".4g") for name in ("mean", "min", "max")),
        ],
    )
    chart: alt.TopLevelMixin = (
        alt.layer(areas, lines).properties(width=size[0], height=size[1]).configure(font=_FONT)
    )
    return chart


def _thinned(curves: pd.DataFrame) -> pd.DataFrame:
    """At most so many of the steps, evenly, with the last."""
    steps = sorted(set(curves["step"]), reverse=True)
    return curves[curves["step"].isin(steps[:: -(-len(steps) // _SHOWN) or 1])]


def _smoothed(curves: pd.DataFrame) -> pd.Series:
    """Rewards, each the mean of its run's last steps."""
    runs = curves.groupby(["arm", "seed"])["reward"]
    return runs.transform(lambda values: values.rolling(_SMOOTHED, min_periods=1).mean())


def learning_chart(curves: pd.DataFrame, order: list[str]) -> alt.TopLevelMixin:
    """Training reward by step, one panel per arm: mean over seeds, band from lowest to highest seed.

    Smoothed over 5 steps. curves: arm, design, seed, step, reward. order: arms as shown.
    """
    data = curves.copy()
    data["reward"] = _smoothed(data)
    groups = _thinned(data).groupby(["arm", "design", "step"], as_index=False)["reward"]
    band = groups.agg(["min", "mean", "max"])
    base = alt.Chart(band).encode(
        x=alt.X("step:Q", title="step"),
        color=alt.Color("design:N", scale=_COLOURS, title=None, legend=alt.Legend(orient="top")),
    )
    layers = alt.layer(
        base.mark_area(opacity=0.25).encode(
            y=alt.Y("min:Q", title="training reward", scale=alt.Scale(zero=False)), y2="max:Q"
        ),
        base.mark_line(strokeWidth=2).encode(y="mean:Q"),
    ).properties(width=150, height=110)
    chart: alt.TopLevelMixin = layers.facet(
        facet=alt.Facet("arm:N", title=None, sort=order), columns=_COLUMNS
    ).configure(font=_FONT)
    return chart


def effects_chart(arms: pd.DataFrame, minimum_effect: float) -> alt.TopLevelMixin:
    """Effects on held-out reward with their intervals, sampled and greedy; one panel per direction.

    arms: as arms.csv. The dashed line is the smallest effect that counts.
    """
    panels = [
        _effects(arms[arms["design"].isin(designs)], minimum_effect, title)
        for designs, title in (
            (("control", "repair"), "mended in the case: gain over the case"),
            (("alone",), "alone in the healthy control: loss against the control"),
        )
    ]
    chart: alt.TopLevelMixin = (
        alt.vconcat(*[panel for panel in panels if panel])
        .resolve_scale(x="shared")
        .configure(font=_FONT)
    )
    return chart


def _effects(arms: pd.DataFrame, minimum_effect: float, title: str) -> Any:
    """One panel, or None without arms."""
    tested = arms.dropna(subset=["effect"])
    if tested.empty:
        return None
    data = pd.concat(
        tested[["arm", value, low, high]]
        .set_axis(["arm", "value", "low", "high"], axis=1)
        .assign(decoding=decoding)
        for decoding, value, low, high in (
            ("sampled", "effect", "ci_low", "ci_high"),
            ("greedy", "effect_greedy", "greedy_low", "greedy_high"),
        )
    )
    order = list(tested.sort_values("effect", ascending=False)["arm"])
    base = alt.Chart(data).encode(
        y=alt.Y("arm:N", sort=order, title=None, axis=alt.Axis(labelLimit=250)),
        yOffset=alt.YOffset("decoding:N", sort=["sampled", "greedy"]),
        color=alt.Color("decoding:N", scale=_DECODING, title=None),
    )
    axis = alt.X("low:Q", title="held-out reward")
    lines = [
        alt.Chart(pd.DataFrame({"x": [x]}))
        .mark_rule(color="#555555", strokeDash=dash)
        .encode(x=alt.X("x:Q", title="held-out reward"))
        for x, dash in ((0.0, [1, 0]), (minimum_effect, [4, 4]))
    ]
    intervals = base.mark_rule(strokeWidth=2).encode(x=axis, x2="high:Q")
    points = base.mark_point(filled=True, size=60).encode(x="value:Q")
    return alt.layer(*lines, intervals, points).properties(
        width=460, height=alt.Step(16), title=title
    )


def write_svg(chart: alt.TopLevelMixin, path: Path) -> None:
    write_text(path, vl_convert.vegalite_to_svg(chart.to_json()))
