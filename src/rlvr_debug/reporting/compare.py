"""Two git revisions of the default study: what differs, and both their training curves."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import altair as alt
import pandas as pd

from rlvr_debug.config import ROOT, parse_params
from rlvr_debug.errors import InputError
from rlvr_debug.git import git
from rlvr_debug.reporting.charts import write_svg

__all__ = ["Comparison", "Results", "compare", "curves_chart", "differences", "read_results"]

WORKING_TREE = "working tree"
_NONE = "-"
_SMOOTHED = 5  # steps
_COLUMNS = 5
T = TypeVar("T")


@dataclass(frozen=True)
class Results:
    """What git tracks of a study. name: of the revision; curves: as curves.csv.

    verdicts: a phrase by hypothesis; metrics, params: values by key, `a.b.c`.
    """

    name: str
    verdicts: Mapping[str, Any]
    metrics: Mapping[str, Any]
    params: Mapping[str, Any]
    curves: pd.DataFrame


def read_results(revision: str | None, root: Path = ROOT) -> Results:
    """Of a git revision, or of the working tree. Raises InputError for a revision or file that is missing."""
    if revision is not None:
        commit = ("--verify", "--end-of-options", f"{revision}^{{commit}}")
        _of_git(f"revision '{revision}'", "rev-parse", *commit, folder=root)

    def read(path: str, parse: Callable[[str, str], T]) -> T:
        if revision is None:
            place, text = path, _read(root / path, path)
        else:
            place = f"{revision}:{path}"
            text = _of_git(place, "show", f"{revision}:./{path}", folder=root)
        try:
            return parse(text, place)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{place}: expected results of a study, found: {error!r}") from None

    return Results(
        revision or WORKING_TREE,
        read("results/tables/verdicts.csv", _verdicts),
        read("results/metrics.json", lambda text, _: dict(_flat(json.loads(text)))),
        read("params.yaml", lambda text, place: dict(_flat(parse_params(text, place)))),
        read("results/tables/curves.csv", _curves),
    )


def _of_git(place: str, *arguments: str, folder: Path) -> str:
    """In words of this comparison, not of git."""
    try:
        return git(*arguments, folder=folder)
    except InputError:
        raise InputError(f"{place}: not found in git, expected results of a study") from None


def _read(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}, expected results of a study") from None


def _curves(text: str, _: str) -> pd.DataFrame:
    curves: pd.DataFrame = _table(text)[["arm", "seed", "step", "reward"]]
    return curves


def _table(text: str) -> pd.DataFrame:
    # an empty cell is missing; an arm called "null" is not
    return pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""])


def _verdicts(text: str, _: str) -> dict[str, str]:
    columns = ["hypothesis", "status", "confidence", "effect", "ci_low", "ci_high"]
    rows = _table(text)[columns].to_dict("records")
    return {row["hypothesis"]: _phrase(row) for row in rows}


def _phrase(row: Mapping[Any, Any]) -> str:
    """Such as `validated (high): +0.26 [+0.16, +0.36]`."""
    confidence = f" ({row['confidence']})" if isinstance(row["confidence"], str) else ""
    if pd.isna(row["effect"]):
        return f"{row['status']}{confidence}"
    effect, low, high = (f"{row[key]:+.3f}" for key in ("effect", "ci_low", "ci_high"))
    return f"{row['status']}{confidence}: {effect} [{low}, {high}]"


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Values by key, `a.b.c`; an empty mapping is a value."""
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _flat(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Key, both values and, of numbers, the change; a dash where one has no such key."""
    return [
        (key, _shown(old, key), _shown(new, key), _change(old.get(key), new.get(key)))
        for key in sorted({*old, *new})
        if (key in old, old.get(key)) != (key in new, new.get(key))
    ]


def _shown(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return _NONE
    value = values[key]
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _change(old: Any, new: Any) -> str:
    numbers = all(type(value) in (int, float) for value in (old, new))
    return f"{new - old:+.6g}" if numbers else ""


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    # a bar would end the cell
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


_PARTS = {"verdicts": "hypothesis", "metrics": "metric", "params": "key"}


@dataclass(frozen=True)
class Comparison:
    """chart: where both revisions' curves are drawn; None where nothing differs."""

    old: Results
    new: Results
    chart: Path | None

    @property
    def text(self) -> str:
        return report(self.old, self.new)

    def to_json(self) -> dict[str, Any]:
        """By part and key, what each revision has; nothing where it has no such key."""
        both = {"old": self.old, "new": self.new}
        found: dict[str, Any] = {name: results.name for name, results in both.items()}
        for part in _PARTS:
            keys = [
                key for key, *_ in differences(getattr(self.old, part), getattr(self.new, part))
            ]
            found[part] = {
                key: {n: getattr(r, part)[key] for n, r in both.items() if key in getattr(r, part)}
                for key in keys
            }
        return found | {"chart": str(self.chart) if self.chart else None}


def report(old: Results, new: Results) -> str:
    """Markdown; one line if nothing differs."""
    found = {part: differences(getattr(old, part), getattr(new, part)) for part in _PARTS}
    if _same(old, new):
        return f"{old.name} and {new.name} have the same verdicts, metrics, params and curves."
    return "\n\n".join(
        f"## {part}\n\n"
        + (
            _markdown([_PARTS[part], old.name, new.name, "change"], rows)
            if rows
            else f"The same in {old.name} and {new.name}."
        )
        for part, rows in found.items()
    )


def curves_chart(old: Results, new: Results) -> alt.TopLevelMixin:
    """Mean training reward over seeds by step, smoothed over 5; a panel per arm, `old` dashed."""
    names = [old.name, new.name]
    data = pd.concat(_means(results) for results in (old, new))
    order = list(dict.fromkeys([*new.curves["arm"], *old.curves["arm"]]))
    dashes = alt.Scale(domain=names, range=[[4, 3], [1, 0]])
    colours = alt.Scale(domain=names, range=["#D55E00", "#0072B2"])
    legend = alt.Legend(orient="top", symbolSize=400, symbolStrokeWidth=2, labelLimit=400)
    chart: alt.TopLevelMixin = (
        alt.Chart(data)
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("step:Q", title="step"),
            y=alt.Y("reward:Q", title="training reward", scale=alt.Scale(zero=False)),
            strokeDash=alt.StrokeDash("revision:N", scale=dashes, title=None, legend=legend),
            color=alt.Color("revision:N", scale=colours, title=None, legend=legend),
        )
        .properties(width=150, height=110)
        .facet(facet=alt.Facet("arm:N", title=None, sort=order), columns=_COLUMNS)
        .configure(font="sans-serif")
    )
    return chart


def _means(results: Results) -> pd.DataFrame:
    means = results.curves.groupby(["arm", "step"])["reward"].mean().reset_index()
    means["reward"] = means.groupby("arm")["reward"].transform(
        lambda values: values.rolling(_SMOOTHED, min_periods=1).mean()
    )
    return means.assign(revision=results.name)


def _same(old: Results, new: Results) -> bool:
    parts = (differences(getattr(old, part), getattr(new, part)) for part in _PARTS)
    return not any(parts) and old.curves.equals(new.curves)


def compare(revision: str, other: str | None, out: Path, root: Path = ROOT) -> Comparison:
    """What differs between `revision` and `other` (None: the working tree).

    Draws both revisions' curves to `out`, an SVG, unless nothing differs.
    """
    old, new = read_results(revision, root), read_results(other, root)
    if _same(old, new):
        return Comparison(old, new, None)
    write_svg(curves_chart(old, new), out)
    return Comparison(old, new, out)
