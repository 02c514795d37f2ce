"""Result files of all runs -> the study's tables, and the metrics that DVC compares."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, read_jsonl, write_json, write_text
from rlvr_debug.trainers import Run, load_trainer
from rlvr_debug.verdicts.decide import Evidence, Verdict, decide, observed
from rlvr_debug.verdicts.looks import Look, looked, whole_run
from rlvr_debug.verdicts.rule import Bar, arm_table, in_answer
from rlvr_debug.verdicts.statistics import slope_estimate

_AGAINST_CONTROL = ("case", "alone", "random_reward")


def run_table(runs: Sequence[Run], results: Path) -> pd.DataFrame:
    """One row per run. Token counts are totals over training; kl and grad_norm the largest step's."""
    rows = []
    by_arm = {run.arm: run for run in reversed(runs)}
    for run in runs:
        other = "control" if run.design in _AGAINST_CONTROL else "case"
        steps = _steps(run, results)
        heldout = read_json(results / "runs" / run.name / "heldout.json")
        baseline = read_json(results / "baseline" / f"{run.environment}.json")
        rows.append(
            {
                **{
                    key: getattr(run, key) for key in ("arm", "design", "hypothesis", "environment")
                },
                "changes": "; ".join(_changes(run, by_arm[other])),
                "seed": run.seed,
                "trained_as": run.trained_as,
                "steps": len(steps),
                "updates": len(steps) * run.training.num_iterations,
                "rollouts": len(steps) * run.rollouts_per_step,
                "learning_rate": run.training.learning_rate,
                "temperature": run.training.temperature,
                **{
                    key: sum(row[key] for row in steps)
                    for key in ("sampled_tokens", "trained_tokens")
                },
                "baseline_reward": baseline["sampled"]["reward"],
                "heldout_reward": heldout["sampled"]["reward"],
                "baseline_reward_greedy": baseline["greedy"]["reward"],
                "heldout_reward_greedy": heldout["greedy"]["reward"],
                "gain": heldout["sampled"]["reward"] - baseline["sampled"]["reward"],
                "gain_greedy": heldout["greedy"]["reward"] - baseline["greedy"]["reward"],
                "training_reward_first": steps[0]["reward"],
                "training_reward_last": steps[-1]["reward"],
                "kl_max": max(row.get("kl", math.nan) for row in steps),
                "grad_norm_max": max(row["grad_norm"] for row in steps),
                "sampler_gap_max": max(row.get("sampler_gap/mean_abs", math.nan) for row in steps),
            }
        )
    return pd.DataFrame(rows)


def _changes(run: Run, other: Run) -> Iterator[str]:
    """In what `run` differs from `other`."""
    if run.environment != other.environment:
        yield f"environment {run.environment}"
    for fault in other.faults:
        if fault not in run.faults:
            yield f"without {fault}"
    for fault in run.faults:
        if fault not in other.faults:
            yield f"with {fault}"
    mine, others = asdict(run.training), asdict(other.training)
    for key, value in mine.items():
        if value != others[key]:
            yield f"{key} {others[key]} → {value}"
    for key in sorted({*run.rollouts, *other.rollouts}):
        if run.rollouts.get(key) != other.rollouts.get(key):
            yield f"rollouts' {key} {run.rollouts.get(key, 'as in evaluation')}"
    watching = load_trainer(run.trainer).watching
    for key in sorted({*run.options, *other.options} - watching):
        if run.options.get(key) != other.options.get(key):
            yield f"{key} {other.options.get(key, 'not given')} → {run.options.get(key, 'not given')}"


def curve_table(runs: Sequence[Run], results: Path) -> pd.DataFrame:
    """One row per run and step: the training curves that are drawn."""
    return pd.DataFrame(
        {
            **{key: getattr(run, key) for key in ("arm", "design", "environment", "seed")},
            **{key: row.get(key) for key in ("step", "reward", "kl", "grad_norm")},
        }
        for run in runs
        for row in _steps(run, results)
    )


def _steps(run: Run, results: Path) -> list[dict[str, Any]]:
    """One row of metrics per step. A file cut off between two lines is an error too."""
    path = results / "runs" / run.name / "metrics.jsonl"
    steps = [row for _, row in read_jsonl(path)]
    if len(steps) != run.training.steps:
        raise InputError(f"{path}: has {len(steps)} steps, expected {run.training.steps}")
    return steps


@dataclass(frozen=True)
class Judged:
    """The tables runs, curves and arms, the verdicts, and what they follow from."""

    tables: dict[str, pd.DataFrame]
    verdicts: list[Verdict]
    evidence: Evidence


def judge(
    runs: Sequence[Run], slugs: Sequence[str], settings: Mapping[str, Any], results: Path
) -> Judged:
    """Judge these hypotheses by the results of these runs."""
    alpha = settings["alpha"]
    bar = Bar.of(alpha, settings["minimum_effect"])
    if settings.get("design") == "sequential":
        bar = looked(bar)
    run_rows = run_table(runs, results)
    curves = curve_table(runs, results)
    arms = arm_table(run_rows, settings["environment"], bar)
    slopes = {}
    for arm, group in curves.groupby("arm", sort=False):
        slopes[arm] = slope_estimate([list(c["reward"]) for _, c in group.groupby("seed")], alpha)
    for name, end in (("slope", "value"), ("slope_low", "low"), ("slope_high", "high")):
        arms[name] = [float(getattr(slopes[arm], end)) for arm in arms["arm"]]
    arms["trained_as"] = arms["arm"].map({run.arm: run.trained_as for run in runs})
    check, same = read_json(results / "check.json"), settings.get("unchanged", ())
    lasting = whole_run(runs, results)
    evidence = Evidence(check, arms, run_rows, settings["training"], same, lasting)
    tables = {"runs": run_rows, "curves": curves, "arms": arms}
    return Judged(tables, decide(slugs, evidence, bar), evidence)


def validated(verdicts: Sequence[Verdict]) -> list[str]:
    return [v.hypothesis for v in verdicts if (v.kind, v.status) == ("cause", "validated")]


def write_tables(
    runs: Sequence[Run],
    phases: Mapping[str, int],
    unmapped: Mapping[str, str],
    last: Look,
    settings: Mapping[str, Any],
    results: Path,
) -> None:
    """Write tables/{runs,arms,curves,verdicts}.csv and metrics.json of the runs that the last look chose."""
    judged = judge(runs, sorted(phases), settings, results)
    arms, verdicts = judged.tables["arms"], judged.verdicts
    if last.causes:
        why = f"not run: phase {last.phase} found a cause ({', '.join(last.causes)})"
        verdicts = [
            replace(v, evidence=why)
            if phases[v.hypothesis] > last.phase and v.status == "pending"
            else v
            for v in verdicts
        ]
    for said in (unmapped, _verified(runs, results)):
        verdicts = [
            observed(v, said[v.hypothesis]) if v.hypothesis in said else v for v in verdicts
        ]
    verdicts = sorted(verdicts, key=lambda v: in_answer(vars(v)))
    # with its columns where nothing is tested
    rows = pd.DataFrame(verdicts, columns=[field.name for field in fields(Verdict)])
    for name, table in {**judged.tables, "verdicts": rows}.items():
        text = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        write_text(results / "tables" / f"{name}.csv", text)
    rewards = ["baseline_reward", "baseline_reward_greedy"]
    baselines = judged.tables["runs"].groupby("environment")[rewards].mean()
    write_json(
        results / "metrics.json",
        {
            "verdicts": {
                v.hypothesis: {"status": v.status, **_numbers(v.effect, v.p_holm)} for v in verdicts
            },
            "arms": _rounded(arms.set_index("arm")[["gain", "gain_greedy", "slope"]]),
            "baseline": _rounded(baselines.rename(columns=lambda x: x.removeprefix("baseline_"))),
        },
    )


def _verified(runs: Sequence[Run], results: Path) -> dict[str, str]:
    """By slug, what was found where an arm has its sampler verified after each update."""
    gaps: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        if run.hypothesis and load_trainer(run.trainer).watching & set(run.options):
            own_gaps = [row["sync_gap"] for row in _steps(run, results)]
            gaps.setdefault((run.hypothesis, run.arm), []).extend(own_gaps)
    return {
        slug: f"{arm}: after each of {len(own_gaps)} batches the sampler is at most {max(own_gaps):.1g} nats from the trainer"
        for (slug, arm), own_gaps in sorted(gaps.items())
    }


def _rounded(table: pd.DataFrame) -> dict[Any, dict[Any, float]]:
    """Its rows by their index."""
    return table.map(lambda value: round(value, 6)).to_dict("index")


def _numbers(effect: float, p: float) -> dict[str, float]:
    """JSON has no NaN: what was not estimated is left out."""
    values = {"effect": effect, "p_holm": p}
    return {name: round(value, 6) for name, value in values.items() if math.isfinite(value)}
