"""Answers and what was planted -> a row per case, and a row of scores per mode.

python -m benchmarks.faults.score --names '{"a case": "case-01"}' --work FOLDER --out FOLDER
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

from benchmarks.faults.case import Case, load_cases, told
from benchmarks.faults.study import CASE, CONTROL, MODES, all_arms
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_text
from rlvr_debug.processes import run_main
from rlvr_debug.verdicts.statistics import welch

COUNTS = 0.1  # held-out reward that a fault costs
NONE = "none"
_ALPHA = 0.05


def case_row(case: Case, number: str, work: Path) -> dict[str, Any]:
    """What was planted, what it costs, what was answered, and at what expense."""
    answer, chosen = (
        read_json(work / "observed" / f"{name}.json")[number] for name in ("answers", "chosen")
    )
    statuses = {v["hypothesis"]: v["status"] for v in answer["verdicts"]}
    return {
        "case": case.name,
        "number": number,
        "kind": case.kind,
        "causes": " ".join(case.causes),
        "rows": case.rows,
        "source": case.source,
        "environment": case.task.environment,
        **cost_of(case, work),
        **{f"ranked_{mode}": " ".join(slugs) for mode, slugs in answer["ranked"].items()},
        "validated": " ".join(answer["validated"]),
        "inconclusive": answer["inconclusive"],
        "arms": " ".join(chosen["arms"]),
        "verdicts": " ".join(f"{slug}:{status}" for slug, status in statuses.items()),
        **_expense(case, number, chosen["arms"], work),
    }


def cost_of(case: Case, work: Path) -> dict[str, Any]:
    """Held-out reward that the fault costs, over seeds used for nothing else; of healthy cases not asked."""
    if case.kind != "planted":
        return {**dict.fromkeys(("cost", "cost_low", "cost_high"), float("nan")), "counts": False}
    broken, control = (
        [each["sampled"] for each in read_json(_runs(case, arm, "count", work))]
        for arm in (CASE, CONTROL)
    )
    found = welch(control, broken, _ALPHA)
    ends = {"cost_low": float(found.low), "cost_high": float(found.high)}
    return {"cost": float(found.value), **ends, "counts": bool(found.value >= COUNTS)}


def _runs(case: Case, arm: Any, purpose: str, work: Path) -> Path:
    return work / "runs" / told(case, arm).digest / purpose / "outcomes.json"


def _expense(case: Case, number: str, names: Sequence[str], work: Path) -> dict[str, Any]:
    """runs: that the study asked for, the shared control apart; trainings: of these, those that no
    other run is the same as; minutes: of one core, for those and for the check."""
    known = {arm.name: arm for arm in all_arms()}
    arms = [CASE, *(known[name] for name in names)]
    shared = told(case, CONTROL).digest
    seconds = {}
    for arm in arms:
        if (digest := told(case, arm).digest) != shared:
            runs = read_json(_runs(case, arm, "study", work))
            seconds[digest] = sum(each["seconds"] for each in runs)
    seeds = len(read_json(_runs(case, CASE, "study", work)))
    checked = read_json(work / "observed" / number / "check.json")["seconds"]
    return {
        "runs": seeds * len(arms),
        "trainings": seeds * len(seconds),
        "minutes": (sum(seconds.values()) + checked) / 60,
        "check_seconds": checked,
    }


def score_rows(cases: pd.DataFrame) -> list[dict[str, Any]]:
    """A row per mode; shares with their Clopper-Pearson intervals at 95 %."""
    healthy, planted = (
        cases[cases["kind"] == kind].to_dict("records") for kind in ("healthy", "planted")
    )
    counting = [row for row in planted if row["counts"]]
    return [
        {
            "mode": mode,
            **_share("top1", [_top(row, mode, 1) for row in counting]),
            **_share("top3", [_top(row, mode, 3) for row in counting]),
            **_share("top1_of_all", [_top(row, mode, 1) for row in planted]),
            **_share("false", [_named(row, mode) for row in healthy]),
            **_share("none", [not _ranked(row, mode) for row in counting]),
        }
        for mode in MODES
    ]


def _ranked(row: Mapping[Any, Any], mode: str) -> list[str]:
    return str(row[f"ranked_{mode}"]).split()


def _top(row: Mapping[Any, Any], mode: str, places: int) -> bool:
    """Whether a cause is among the first; where no hypothesis matches, whether none is named."""
    causes, ranked = str(row["causes"]).split(), _ranked(row, mode)
    if not causes:
        return not ranked
    return any(slug in causes for slug in ranked[:places])


def _named(row: Mapping[Any, Any], mode: str) -> bool:
    """Of a healthy case: whether anything is blamed. Of all evidence, that is a validated cause."""
    if mode == "all":
        return bool(row["validated"])
    return bool(row[f"ranked_{mode}"])


def _share(name: str, hits: Sequence[bool]) -> dict[str, Any]:
    low, high = 0.0, 1.0
    if hits:
        low, high = stats.binomtest(sum(hits), len(hits)).proportion_ci(0.95, method="exact")
    ends = {f"{name}_low": float(low), f"{name}_high": float(high)}
    return {name: sum(hits), f"{name}_of": len(hits), **ends}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--names", required=True, help="by case, its number, as JSON")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--all-right", action="store_true", help="fail where an answer is wrong")
    args = parser.parse_args()
    known = load_cases()
    numbers = json.loads(args.names)
    cases = pd.DataFrame([case_row(known[n], number, args.work) for n, number in numbers.items()])
    scores = pd.DataFrame(score_rows(cases))
    write_text(args.out / "scores.csv", scores.to_csv(index=False, float_format="%.4g"))
    write_text(args.out / "cases.csv", cases.to_csv(index=False, float_format="%.4g"))
    print(summary(cases, scores))
    if args.all_right and (wrong := _wrong(cases)):
        raise InputError(f"{args.out / 'cases.csv'}: {wrong[0]}, expected every answer right")


def _wrong(cases: pd.DataFrame) -> list[str]:
    """What is wrong with the answers of all evidence, in words."""
    return [
        f"{row['case']} is answered {row['ranked_all'] or NONE}, validated {row['validated'] or NONE}"
        for row in cases.to_dict("records")
        if (_named(row, "all") if row["kind"] == "healthy" else not _top(row, "all", 1))
    ]


def summary(cases: pd.DataFrame, scores: pd.DataFrame) -> str:
    """As lines of text."""
    planted = cases[cases["kind"] == "planted"]
    lines = [
        f"{len(planted)} planted, {int(planted['counts'].sum())} cost {COUNTS} or more; "
        f"{len(cases) - len(planted)} healthy; {cases['runs'].sum()} runs asked for, "
        f"{cases['trainings'].sum()} trainings, {cases['minutes'].sum():.0f} minutes of a core"
    ]
    for row in scores.to_dict("records"):
        lines.append(
            f"{row['mode']:12} top-1 {row['top1']} of {row['top1_of']} [{row['top1_low']:.2f}, {row['top1_high']:.2f}], "
            f"top-3 {row['top3']}, of all planted {row['top1_of_all']} of {row['top1_of_all_of']}; "
            f"names a cause in {row['false']} of {row['false_of']} healthy ones"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    run_main(main)
