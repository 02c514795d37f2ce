"""The benchmark's tables on its pages: `python -m benchmarks.faults.page` writes them between their marks."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.faults.case import load_cases
from benchmarks.faults.score import NEW, expense
from rlvr_debug.checkout import ROOT
from rlvr_debug.files import write_text

__all__ = [
    "LOCATED",
    "PAGES",
    "RESULTS",
    "cases_table",
    "located_table",
    "read_results",
    "scores_table",
    "written",
]

RESULTS = Path(__file__).with_name("results")
LOCATED = Path(__file__).with_name("located.csv")
_MODES = {
    "logs": "its log alone (`diagnose`)",
    "check": "the check alone, which trains nothing",
    "knobs": "experiments with settings alone",
    "swaps": "experiments with stages alone",
    "experiments": "both kinds of experiments",
    "all": "**all of it: the verdict**",
    NEW: "the same, of faults written after the freeze",
    "rldoctor": "rldoctor 0.2.0, the same log",
    "rlprobe": "rlprobe 0.1.0, the same log",
}


def read_results() -> tuple[pd.DataFrame, pd.DataFrame]:
    """cases.csv and scores.csv."""
    costs = {name: [""] for name in ("cost", "cost_low", "cost_high")}
    cases = pd.read_csv(RESULTS / "cases.csv", keep_default_na=False, na_values=costs)
    scores = pd.read_csv(RESULTS / "scores.csv")
    return cases, scores


def scores_table(cases: pd.DataFrame, scores: pd.DataFrame) -> str:
    """Markdown: a row per kind of evidence, and what it takes."""
    head = (
        "| answer from | right one first, of faults that count | among the first three | of all planted | "
        "blames something in healthy cases |"
    )
    rows = [
        f"| {_MODES[row['mode']]} | {_share(row, 'top1')} | {_share(row, 'top3')} | "
        f"{_share(row, 'top1_of_all')} | {_share(row, 'false')} |"
        for row in scores.to_dict("records")
    ]
    return "\n".join([head, "| --- | --- | --- | --- | --- |", *rows, "", expense(cases)])


def _share(row: Mapping[Any, Any], name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{row[name]} of {row[f'{name}_of']} [{low:.0%}, {high:.0%}]"


def cases_table(cases: pd.DataFrame) -> str:
    """Markdown: a row per case, those that cost most first, then the healthy ones."""
    head = (
        "| case | what is wrong | row, source | right answer | cost | log | check | experiments | verdict | "
        "trainings, minutes |"
    )
    what = {name: case.what for name, case in load_cases().items()}
    ordered = cases.sort_values(["kind", "cost"], ascending=[False, False], kind="stable")
    rows = [
        f"| `{row['case']}`{' *' if row['after_freeze'] else ''} | {what[row['case']]} | {_source(row)} | "
        f"{row['causes'].replace(' ', ', ') or 'none'} | {_cost(row)} | {_first(row, 'logs')} | "
        f"{_first(row, 'check')} | {_first(row, 'experiments')} | {_verdict(row)} | "
        f"{row['trainings']}, {row['minutes']:.1f} |"
        for row in ordered.to_dict("records")
    ]
    return "\n".join([head, f"|{' --- |' * 10}", *rows])


def located_table(found: pd.DataFrame, cases: pd.DataFrame) -> str:
    """Markdown: a row per fault, beside what version 0.1 answered. found: located.csv; cases: that version's."""
    before = {row["case"]: row for row in cases.to_dict("records")}
    head = "| case | wrong | changes its first steps | runs of these, seconds | version 0.1: the check, then the verdict |"
    rows, right, silent, more = [], 0, 0, 0
    for row in found.to_dict("records"):
        planted, seen = str(row["planted"]).split(), str(row["found"]).split()
        more += bool({*seen} - {*planted})
        right += {*seen} == {*planted}
        silent += {*seen} < {*planted}
        old = before.get(row["case"])
        answer = f"{_first(old, 'check')}; {_verdict(old)}" if old else "not among its cases"
        rows.append(
            f"| `{row['case']}` | {_code(planted)} | {_code(seen) or 'nothing'} | {row['steps']}, {row['seconds']:.0f} | {answer} |"
        )
    said = (
        f"Of {len(found)} cases {right} are located in just the stages and settings that are wrong; in {silent} a part of them changes "
        f"nothing in these steps; in {more} anything else is named."
    )
    return "\n".join([head, f"|{' --- |' * 5}", *rows, "", said])


def _code(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _source(row: Mapping[Any, Any]) -> str:
    return "; ".join(part for part in (str(row["rows"]), str(row["source"])) if part) or "-"


def _cost(row: Mapping[Any, Any]) -> str:
    if row["kind"] != "planted":
        return "-"
    text = f"{row['cost']:.2f} [{row['cost_low']:.2f}, {row['cost_high']:.2f}]"
    return f"**{text}**" if row["counts"] else text


def _first(row: Mapping[Any, Any], mode: str) -> str:
    ranked = str(row[f"ranked_{mode}"]).split()
    return ranked[0] if ranked else "none"


def _verdict(row: Mapping[Any, Any]) -> str:
    if row["validated"]:
        return f"**{str(row['validated']).replace(' ', ', ')}** validated"
    ranked = str(row["ranked_all"]).replace(" ", ", ")
    return f"inconclusive: {ranked}" if ranked else "none"


# by page: mark and text
PAGES: Mapping[Path, tuple[str, ...]] = {
    ROOT / "docs" / "benchmark.md": ("scores", "cases", "located"),
}


def written(page: Path) -> str:
    """The page as it should be."""
    cases, scores = read_results()
    found = pd.read_csv(LOCATED, keep_default_na=False)
    parts = {
        "scores": scores_table(cases, scores),
        "cases": cases_table(cases),
        "located": located_table(found, cases),
    }
    text = page.read_text(encoding="utf-8")
    for mark in PAGES[page]:
        text = between(text, mark, parts[mark])
    return text


def between(page: str, mark: str, text: str) -> str:
    """The page with this text between its two marks."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for page in PAGES:
        write_text(page, written(page))
        print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
