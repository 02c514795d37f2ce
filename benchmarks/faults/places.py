"""Of a folder of anybody's cases: each arm's effect, where it goes wrong, why, and what was blamed or kept silent about.

python -m benchmarks.faults.places --names '{"a case": "case-01"}' --cases FOLDER --work FOLDER --out FOLDER
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.faults.case import Case, parts_of, readable_cases
from benchmarks.faults.score import cost_of
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_text
from rlvr_debug.processes import run_main


def place_row(case: Case, answer: Mapping[str, Any], cost: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a case. answer: of judge, as JSON; cost: as cost_of returns it.

    parts: what is planted. differs: of these, what changes the first steps, and anything else that does. located: stages and settings that an
    arm with a large effect changes. place_right: some are located, and all of them planted. silent: of a run that fails, nothing is located
    and no cause validated, which is never right. blamed: of a healthy case, something is. suspected: causes whose
    mechanism is there and whose effect is open.
    """
    planted, healthy = parts_of(case), case.kind == "healthy"
    located = [place for place in answer["places"] if place in answer["differs"]]
    causes = list(answer["validated"])
    found = bool(located or causes)
    return {
        "case": case.name,
        "kind": case.kind,
        "parts": " ".join(planted),
        "causes": " ".join(case.causes),
        **cost,
        "differs": " ".join(answer["differs"]),
        "effects": " ".join(
            f"{arm}:{value:+.3f}[{low:+.3f},{high:+.3f}]"
            for arm, (value, low, high) in answer["effects"].items()
        ),
        "located": " ".join(located),
        "place_right": not healthy and bool(located) and set(located) <= set(planted),
        "validated": " ".join(causes),
        "cause_right": not healthy and bool({*causes} & {*case.causes}),
        "silent": bool(cost["counts"]) and not found,
        "blamed": healthy and found,
        "suspected": " ".join(
            verdict["hypothesis"]
            for verdict in answer["verdicts"]
            if (verdict["status"], verdict["mechanism"]) == ("inconclusive", "present")
        ),
    }


def summary(rows: pd.DataFrame, wrong: Sequence[str]) -> str:
    """Return the outcome as lines of text. wrong: of each case that does not load, or cannot be trained, a line."""
    counting, healthy = rows[rows["counts"]], rows[rows["kind"] == "healthy"]
    named = counting[counting["causes"] != ""]
    lines = [
        f"{len(rows)} cases, of which {len(counting)} fail by the minimum effect or more and {len(healthy)} are healthy; "
        f"{len(wrong)} do not load or cannot be trained",
        f"of those that fail: located in the right place {counting['place_right'].sum()}, silent {counting['silent'].sum()}; "
        f"of {len(named)} with a cause: the right one validated {named['cause_right'].sum()}",
        f"of healthy ones: blamed {healthy['blamed'].sum()}, suspected {(healthy['suspected'] != '').sum()}",
    ]
    return "\n".join([*lines, *wrong])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--names", required=True, help="by case, its number, as JSON")
    parser.add_argument("--cases", type=Path, required=True, help="a cases.yaml")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    known, wrong = readable_cases(args.cases)
    names, observed = json.loads(args.names), args.work / "observed"
    answers, chosen, tried = (
        read_json(observed / f"{name}.json") for name in ("answers", "chosen", "tried")
    )
    rows, lines = [], list(wrong.values())
    for name, number in names.items():
        if number in tried:
            lines.append(f"{args.cases}: case '{name}' cannot be trained: {tried[number]}")
            continue
        answer = {**answers[number], "differs": chosen[number]["parts"]}
        rows.append(place_row(known[name], answer, cost_of(known[name], args.work)))
    if not rows:
        raise InputError("\n".join([*lines, f"{args.cases}: expected a case that can be trained"]))
    table = pd.DataFrame(rows)
    write_text(args.out / "places.csv", table.to_csv(index=False, float_format="%.4g"))
    said = summary(table, lines)
    write_text(args.out / "summary.txt", said + "\n")
    print(said)


if __name__ == "__main__":
    run_main(main)
