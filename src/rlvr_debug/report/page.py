"""A study's files -> one HTML page with the answer, its evidence, the hypotheses and the rollouts.

It needs nothing beside itself: scripts, styles, charts and data are inside, and its policy forbids the browser
to load or to run anything else. All that a model, a row or a name says is text.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
import pandas as pd
from markupsafe import Markup

from rlvr_debug.causes import in_order, load_hypothesis, phase_of
from rlvr_debug.files import read_json, read_table, read_text
from rlvr_debug.replay.variants import consequences_for, segments_for
from rlvr_debug.report.answer import (
    answer,
    courses,
    fix,
    interval,
    seed_counts,
    success_criteria,
)
from rlvr_debug.report.charts import curves_chart, study_charts, vega_script
from rlvr_debug.report.offline import inline_script, packed, policy, source, templates
from rlvr_debug.report.rollouts import shown_rollouts
from rlvr_debug.trainers import load_trainer
from rlvr_debug.verdicts.decide import observations
from rlvr_debug.verdicts.rule import in_answer, in_words

NOTES = "notes"  # the folder beside `results` with a file for each hypothesis, <slug>.md

_TABLES = ("runs", "arms", "verdicts", "curves")
_BUDGET = ("steps", "updates", "rollouts", "sampled_tokens", "trained_tokens")
_ORDER = (
    *("validated", "located_not_explained", "partially_validated", "inconclusive", "pending"),
    *("explained_costs_nothing", "invalidated", "not_applicable"),
)
# of charts, in pixels; the first is on the first screen, below the answer
_FIRST, _PAGE, _SMALL = (440, 170), (560, 230), (400, 170)


def report_html(results: Path, settings: Mapping[str, Any]) -> str:
    """settings: study, case, trainer, environment, minimum_effect and alpha of params.yaml."""
    tables = {name: read_table(results / "tables" / f"{name}.csv") for name in _TABLES}
    for name in ("arms", "runs"):
        tables[name]["changes"] = tables[name]["changes"].fillna("")
    check = read_json(results / "check.json")
    rollouts = shown_rollouts(results, tables)
    arms = tables["arms"]
    mended = fix(arms)
    lines = _lines(mended)
    by_name = {arm["arm"]: arm for arm in arms.to_dict("records")}
    charts = {
        "answer": curves_chart(tables["curves"], lines, "reward", "training reward", _FIRST),
    }
    whole = study_charts()
    charts |= {each.name: each.draw(tables, settings["minimum_effect"]) for each in whole}
    pages = []
    verdicts = _ordered(tables["verdicts"])
    slugs = list(verdicts["hypothesis"])
    for verdict in verdicts.to_dict("records"):
        own = dict(_page_charts(verdict["hypothesis"], tables))
        charts |= own
        pages.append(_page(verdict, slugs, tables, check, list(own), results))
    scripts = [
        Markup(inline_script(source(name))) for name in ("unpack.js", "charts.js", "viewer.js")
    ]
    vega = vega_script()
    data = {
        "vega": vega,
        "specs": _json({name: _spec(chart) for name, chart in charts.items()}),
        "rollouts-data": _json(rollouts),
    }
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            ours=load_trainer(settings["trainer"]).ours,
            policy=policy([*scripts, vega]),
            style=Markup(source("report.css")),
            scripts=scripts,
            packed={name: packed(text) for name, text in data.items()},
            rollouts=rollouts,
            answer=answer(tables, settings, check),
            pages=pages,
            whole=whole,
            tested=slugs,
            fix=mended,
            criteria=success_criteria(arms, tables["runs"], tables["verdicts"], settings),
            arms=arms.to_dict("records"),
            # what an arm may use, and the tokens it used, means over seeds
            budgets=tables["runs"].groupby("arm")[list(_BUDGET)].mean().to_dict("index"),
            check=check,
            settings=settings,
            seeds=seed_counts(*(by_name[arm] for arm in lines)),
            percent=round(100 * (1 - settings["alpha"])),
        )
    )


def _ordered(verdicts: pd.DataFrame) -> pd.DataFrame:
    """What was found before what is open and what is cleared; by effect among equals. What no hypothesis names is first."""
    ordered = verdicts.sort_values(
        ["status", "effect", "hypothesis"],
        ascending=[True, False, True],
        key=lambda column: column.map(_ORDER.index) if column.name == "status" else column,
    )
    return ordered.loc[sorted(ordered.index, key=lambda row: in_answer(ordered.loc[row].to_dict()))]


def _lines(mended: str) -> dict[str, str]:
    """What the first chart calls the case, the fix and the control, of which two may be one."""
    control = "healthy control: everything mended"
    if mended == "control":
        return {"case": "the case", "control": f"the fix ({control})"}
    return {"case": "the case", mended: f"the fix: {mended}", "control": control}


def _page_charts(
    slug: str, tables: Mapping[str, pd.DataFrame]
) -> Iterator[tuple[str, alt.TopLevelMixin]]:
    """Of one hypothesis: its arms beside case and controls, by reward, KL and norm of the gradient."""
    arms, curves = tables["arms"], tables["curves"]
    own = arms[arms["hypothesis"] == slug]
    if own.empty:
        return
    beside = (arms["design"] == "control") & arms["environment"].isin(set(own["environment"]))
    shown = arms[(arms["arm"].isin(("case", "control"))) | beside]
    labels = {arm: arm for arm in [*shown["arm"], *own["arm"]]}
    yield f"{slug}-reward", curves_chart(curves, labels, "reward", "training reward", _PAGE)
    for metric, title in (("kl", "KL to the reference"), ("grad_norm", "norm of the gradient")):
        if curves[curves["arm"].isin(list(labels))][metric].notna().any():
            chart = curves_chart(curves, labels, metric, f"{title} (symlog)", _SMALL, "symlog")
            yield f"{slug}-{metric}", chart


def _page(
    verdict: Mapping[Any, Any],
    slugs: Sequence[str],
    tables: Mapping[str, pd.DataFrame],
    check: Mapping[str, Any],
    charts: Sequence[str],
    results: Path,
) -> dict[str, Any]:
    """Return one hypothesis with what its page shows: its verdict, rows of the tables, parts of the check, charts, files and notes."""
    slug, arms, runs = verdict["hypothesis"], tables["arms"], tables["runs"]
    # what the owner of the study wrote, in a file that no job writes
    notes = results.parent / NOTES / f"{slug}.md"
    shown = runs[(runs["hypothesis"] == slug) | runs["arm"].isin(("case", "control"))]
    gone = courses(tables)
    rows = shown.to_dict("records")
    return {
        "hypothesis": load_hypothesis(slug),
        "verdict": verdict,
        "phase": phase_of(slug, slugs),
        "place": in_order(slugs).index(slug) + 1,
        "arms": arms[arms["hypothesis"] == slug].to_dict("records"),
        "runs": rows,
        "segments": [each for each in check["segments"] if each["segment"] in segments_for(slug)],
        "consequences": [
            each for each in check["consequences"] if each["name"] in consequences_for(slug)
        ],
        "observations": observations(str(verdict["evidence"])),
        "charts": charts,
        "courses": {arm: gone[arm] for arm in shown["arm"].unique()},
        "files": _run_files(results, rows),
        "notes": read_text(notes, "notes").strip() if notes.is_file() else "",
    }


# --- what stands inside the page


def _spec(chart: alt.TopLevelMixin) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(chart.to_json())
    del spec["$schema"]  # an address, which an offline page has no use for
    return spec


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _environment() -> jinja2.Environment:
    environment = templates()
    environment.filters["signed"] = lambda x, digits=3: "" if math.isnan(x) else f"{x:+.{digits}f}"
    environment.filters["interval"] = interval
    environment.filters["number"] = lambda x: "" if math.isnan(x) else f"{x:.3g}"
    environment.filters["text"] = lambda x: in_words(x) if isinstance(x, str) else ""
    environment.filters["seeds"] = _seeds
    # the address of a file of the study, from results/report.html
    environment.filters["from_report"] = lambda path: os.path.relpath(path, "results")
    environment.filters["p"] = lambda x: "" if math.isnan(x) else f"{x:.2g}"
    return environment


def _seeds(further: float) -> str:
    """Further seeds that would decide; empty where a verdict is not for want of them."""
    if math.isnan(further):
        return ""
    return f"{further:.0f}" if math.isfinite(further) else "none up to 100"


# what a finished run leaves beside its metrics and rollouts, and what an interrupted one goes on from
_CHECKPOINTS = ("model.safetensors", "adapter", "checkpoint")


def _run_files(results: Path, runs: Sequence[Mapping[Any, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the files of each of these runs, rows of runs.csv, by their paths from the study's folder."""
    for run in runs:
        name = f"{run['environment']}/{run['trained_as']}/{run['seed']}"
        folder, shown = results / "runs" / name, f"results/runs/{name}"
        yield {
            **{key: run[key] for key in ("arm", "seed")},
            "folder": shown,
            "log": f"logs/train/{name}.log",
            "checkpoints": [f"{shown}/{file}" for file in _CHECKPOINTS if (folder / file).exists()],
            "trackers": list(_tracked(folder / "trackers", f"{shown}/trackers")),
        }


def _tracked(folder: Path, shown: str) -> Iterator[dict[str, str]]:
    """Yield each tracker's folder, and the command that shows or uploads it: Weights & Biases has one for each start."""
    for run in sorted(folder.glob("wandb/*run-*")):
        place = f"{shown}/wandb/{run.name}"
        yield {"tracker": "Weights & Biases", "folder": place, "command": f"wandb sync {place}"}
    if any(folder.rglob("events.out.tfevents.*")):
        command = f"tensorboard --logdir {shown}"
        yield {"tracker": "TensorBoard", "folder": shown, "command": command}
