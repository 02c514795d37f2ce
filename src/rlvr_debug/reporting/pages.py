"""Tables, charts and probes -> HTML pages: a summary with the answer, the experiments, the hypotheses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from rlvr_debug.files import read_json, write_text
from rlvr_debug.hypotheses import load_hypothesis, phase_of
from rlvr_debug.reporting.record import fix, success_criteria

__all__ = ["answer", "write_pages"]


def _title(settings: Mapping[str, Any]) -> str:
    title = f"Study {settings['study']}: the case {settings['case']}"
    return title if settings["trainer"] == "own" else f"{title}, trainer {settings['trainer']}"


def write_pages(results: Path, settings: Mapping[str, Any], out: Path) -> None:
    """settings: study, case, trainer, minimum_effect and alpha of params.yaml."""
    tables = {
        # an empty cell is missing; an arm called "null" is not
        name: pd.read_csv(results / "tables" / f"{name}.csv", keep_default_na=False, na_values=[""])
        for name in ("runs", "arms", "verdicts")
    }
    tables["arms"]["changes"] = tables["arms"]["changes"].fillna("")
    verdicts = tables["verdicts"].to_dict("records")
    environment = _templates()
    sentence, detail = answer(tables["verdicts"], tables["arms"], settings)
    charts = {
        name: Markup((results / "charts" / f"{name}.svg").read_text(encoding="utf-8"))
        for name in ("learning", "effects")
    }
    hypotheses = {slug: load_hypothesis(slug) for slug in tables["verdicts"]["hypothesis"]}
    page = environment.get_template("experiments.html.j2").render(
        title=f"Experiments of study {settings['study']}",
        arms=tables["arms"].to_dict("records"),
        budgets=_budgets(tables["runs"]),
        settings=settings,
    )
    write_text(out / "experiments.html", page)
    page = environment.get_template("summary.html.j2").render(
        title=_title(settings),
        answer=sentence,
        detail=detail,
        verdicts=verdicts,
        hypotheses=hypotheses,
        fix=fix(tables["arms"]),
        criteria=success_criteria(tables["arms"], tables["runs"], tables["verdicts"], settings),
        arms=tables["arms"].to_dict("records"),
        probes=list(read_json(results / "probes.json").values()),
        charts=charts,
        settings=settings,
        percent=round(100 * (1 - settings["alpha"])),
    )
    write_text(out / "summary.html", page)
    for verdict in verdicts:
        runs = tables["runs"]
        own = (runs["hypothesis"] == verdict["hypothesis"]) | runs["arm"].isin(("case", "control"))
        page = environment.get_template("hypothesis.html.j2").render(
            title=f"Hypothesis {verdict['hypothesis']}",
            verdict=verdict,
            hypothesis=hypotheses[verdict["hypothesis"]],
            arms=tables["arms"][tables["arms"]["hypothesis"] == verdict["hypothesis"]].to_dict(
                "records"
            ),
            phase=phase_of(verdict["hypothesis"], hypotheses),
            runs=runs[own].to_dict("records"),
        )
        write_text(out / f"{verdict['hypothesis']}.html", page)


def _budgets(runs: pd.DataFrame) -> dict[str, dict[str, float]]:
    """By arm: what it may use (steps, updates, rollouts) and the tokens it used, means over seeds."""
    columns = ["steps", "updates", "rollouts", "sampled_tokens", "trained_tokens"]
    means = runs.groupby("arm")[columns].mean()
    return {str(arm): dict(zip(columns, row, strict=True)) for arm, row in means.iterrows()}


def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["signed"] = lambda x, digits=3: "" if math.isnan(x) else f"{x:+.{digits}f}"
    environment.filters["interval"] = _interval
    environment.filters["text"] = lambda x: x.replace("_", " ") if isinstance(x, str) else ""
    environment.filters["seeds"] = _seeds
    environment.filters["p"] = lambda x: "" if math.isnan(x) else f"{x:.2g}"
    return environment


def _interval(estimate: list[float], digits: int = 3) -> str:
    """Value, low and high as text; an infinite interval (one seed) is said in words."""
    value, low, high = (f"{x:+.{digits}f}" for x in estimate)
    if math.isnan(estimate[0]):
        return ""
    return f"{value} [{low}, {high}]" if math.isfinite(estimate[1]) else f"{value} [one seed]"


def _seeds(further: float) -> str:
    """Further seeds that would decide; empty where a verdict is not for want of them."""
    if math.isnan(further):
        return ""
    return f"{further:.0f}" if math.isfinite(further) else "none up to 100"


def _learns_at_random(arms: pd.DataFrame, minimum_effect: float) -> bool:
    """Whether the control with random rewards gains (arXiv 2506.10947)."""
    control = arms[arms["design"] == "random_reward"]
    return bool(((control["gain_low"] > 0) & (control["gain"] >= minimum_effect)).any())


def answer(
    verdicts: pd.DataFrame, arms: pd.DataFrame, settings: Mapping[str, Any]
) -> tuple[str, str]:
    """The answer in one sentence, and the figures behind it in another."""
    by_arm = arms.set_index("arm")
    case, control = by_arm.loc["case"].to_dict(), by_arm.loc["control"].to_dict()
    figures = (
        f"Held-out reward changes by {case['gain']:+.3f} [{case['gain_low']:+.3f}, "
        f"{case['gain_high']:+.3f}] in the case (greedy {case['gain_greedy']:+.3f}) and by "
        f"{control['gain']:+.3f} [{control['gain_low']:+.3f}, {control['gain_high']:+.3f}] in the healthy "
        f"control (greedy {control['gain_greedy']:+.3f}), over {int(case['seeds'])} seeds."
    )
    if case["gain_low"] > 0 and case["gain"] >= settings["minimum_effect"]:
        learns = "The run learns. "
    elif case["gain_high"] < settings["minimum_effect"]:
        learns = "The run does not learn. "
    else:
        learns = "Whether the run learns is unclear at this number of seeds. "
    if _learns_at_random(arms, settings["minimum_effect"]):
        learns += "Random rewards gain as well, so that a gain proves no learning. "
    causes = verdicts[(verdicts["kind"] == "cause") & (verdicts["status"] == "validated")]
    if not causes.empty:
        ordered = causes.sort_values("effect", ascending=False)["hypothesis"]
        claims = " ".join(
            f"({number}) {load_hypothesis(slug).claim}" for number, slug in enumerate(ordered, 1)
        )
        found = "Cause found: " if len(causes) == 1 else f"{len(causes)} causes found: "
        repaired = arms[arms["hypothesis"].isin(ordered) & (arms["design"] == "repair")]
        joint = (
            " Each stops learning by itself, so that mending one alone changes little."
            if len(causes) > 1 and not (repaired["status"] == "validated").any()
            else ""
        )
        return learns + found + claims + joint, figures
    if learns.startswith("The run learns"):
        return learns + "No hypothesis is validated.", figures
    if control["status"] == "validated":
        return (
            learns + "Mending everything helps, but no single hypothesis is validated: "
            "look at the ones that are partially validated or inconclusive.",
            figures,
        )
    if control["status"] == "invalidated":
        return (
            learns + "Nor does the healthy control: the setting itself may allow no learning.",
            figures,
        )
    return (
        learns + "The healthy control is not shown to do better, so nothing can be concluded: "
        "train longer or on more seeds.",
        figures,
    )
