"""Charts of a study. looks.yaml has their colours, dashes and legends."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import altair as alt
import pandas as pd
import vl_convert

from rlvr_debug.files import read_yaml, write_text
from rlvr_debug.grpo.settings import SMOOTHED

Tables = Mapping[str, pd.DataFrame]
_LOOKS: dict[str, Any] = read_yaml(Path(__file__).with_name("looks.yaml"))
_ROOM = 20  # pixels
_FONT = "sans-serif"
_COLUMNS = 5
_SHOWN = 80  # steps of a line: a long run is thinned, for the report holds many charts


def curves_chart(
    curves: pd.DataFrame,
    labels: Mapping[str, str],
    metric: str,
    title: str,
    size: tuple[int, int],
    scale: Literal["linear", "symlog"] = "linear",
) -> alt.TopLevelMixin:
    """Draw `metric` by step of the arms in `labels`, in one panel: mean over seeds, band from the lowest to the highest."""
    data = curves[curves["arm"].isin(list(labels))].dropna(subset=[metric])
    band = _band(data, metric, "arm").round(6)
    band["line"] = band["arm"].map(labels)
    order = list(labels.values())
    others = zip(*map(itertools.cycle, _LOOKS["others"].values()), strict=True)  # without an end
    looks = [_LOOKS["lines"].get(arm) or next(others) for arm in labels]
    colours, dashes = [colour for colour, _ in looks], [dash for _, dash in looks]
    # what colour and dash share becomes one legend
    legend = alt.Legend(labelLimit=size[0], **_LOOKS["legend"])
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
    return _drawn(alt.layer(areas, lines).properties(width=size[0], height=size[1]))


def _drawn(panels: Any) -> alt.TopLevelMixin:
    """As a whole chart, in the report's font, with room for a reader whose own is wider than what an SVG was laid out in."""
    chart: alt.TopLevelMixin = panels.configure(font=_FONT, padding=_ROOM)
    return chart


def _band(curves: pd.DataFrame, metric: str, *by: str) -> pd.DataFrame:
    """`metric` by step of each line: the lowest, the mean and the highest of its seeds. A reward is the mean of the last ones."""
    if metric == "reward":
        runs = curves.groupby(["arm", "seed"])["reward"]
        smoothed = runs.transform(lambda r: r.rolling(SMOOTHED, min_periods=1).mean())
        curves = curves.assign(reward=smoothed)
    steps = sorted(set(curves["step"]), reverse=True)
    # evenly, with the last
    shown = curves[curves["step"].isin(steps[:: -(-len(steps) // _SHOWN) or 1])]
    return shown.groupby([*by, "step"], as_index=False)[metric].agg(["min", "mean", "max"])


@dataclass(frozen=True)
class StudyChart:
    """A chart of a whole study, as charts.yaml tells it. draw: from the tables and the minimum effect."""

    name: str
    title: str
    label: str
    caption: str
    draw: Callable[[Tables, float], alt.TopLevelMixin]


def study_charts() -> list[StudyChart]:
    """Return the charts that charts.yaml lists, each with its function of this file."""
    listed = read_yaml(Path(__file__).with_name("charts.yaml"))
    return [StudyChart(**each, draw=globals()[f"{each['name']}_chart"]) for each in listed]


def learning_chart(tables: Tables, minimum_effect: float) -> alt.TopLevelMixin:
    """Draw the smoothed training reward by step, one panel per arm: mean over seeds, band from the lowest to the highest."""
    base = alt.Chart(_band(tables["curves"], "reward", "arm", "design")).encode(
        x=alt.X("step:Q", title="step"),
        color=alt.Color(
            "design:N",
            scale=alt.Scale(**_LOOKS["designs"]),
            title=None,
            legend=alt.Legend(orient="top"),
        ),
    )
    layers = alt.layer(
        base.mark_area(opacity=0.25).encode(
            y=alt.Y("min:Q", title="training reward", scale=alt.Scale(zero=False)), y2="max:Q"
        ),
        base.mark_line(strokeWidth=2).encode(y="mean:Q"),
    )
    arm = alt.Facet("arm:N", title=None, sort=list(tables["arms"]["arm"]))
    return _drawn(layers.properties(**_LOOKS["panel"]).facet(facet=arm, columns=_COLUMNS))


def effects_chart(tables: Tables, minimum_effect: float) -> alt.TopLevelMixin:
    """Draw effects on held-out reward with their intervals, sampled and greedy; the dashed line is the smallest that counts."""
    arms = tables["arms"]
    panels = [
        _effects(arms[arms["design"].isin(designs)], minimum_effect, title)
        for designs, title in (
            (("control", "repair"), "mended in the case: gain over the case"),
            (("alone",), "alone in the healthy control: loss against the control"),
        )
    ]
    return _drawn(alt.vconcat(*filter(None, panels)).resolve_scale(x="shared"))


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
        color=alt.Color("decoding:N", scale=alt.Scale(**_LOOKS["decoding"]), title=None),
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


@cache
def vega_script() -> str:
    """Return Vega, Vega-Lite and their embedding as one script, as vl-convert has them."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def write_svg(chart: alt.TopLevelMixin, path: Path) -> None:
    write_text(path, vl_convert.vegalite_to_svg(chart.to_json()))
