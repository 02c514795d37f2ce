"""Ten healthy studies with seeds of their own: no hypothesis may be validated.

    make run OVERLAY=studies/healthy-ten.yaml; python -m benchmarks.healthy_studies

Each three seeds of that study are judged as a study of their own, by the code that judges any study.
"""

from __future__ import annotations

from collections import Counter

import pandas as pd
from scipy.stats import beta

from rlvr_debug.config import ROOT, load_params
from rlvr_debug.files import read_json
from rlvr_debug.hypotheses.base import Evidence
from rlvr_debug.verdicts.decide import arm_table, decide

_SEEDS = 3
_STUDY = ROOT / "studies" / "healthy-ten"


def main() -> None:
    params = load_params(ROOT / "params.yaml", _STUDY.with_suffix(".yaml"))
    results = _STUDY / "results"
    runs = pd.read_csv(results / "tables" / "runs.csv", keep_default_na=False, na_values=[""])
    runs["changes"] = runs["changes"].fillna("")  # an empty cell is read as missing
    probes = read_json(results / "probes.json")
    alpha, minimum = params["verdicts"]["alpha"], params["verdicts"]["minimum_effect"]
    seeds = params["seeds"]
    found = []
    for start in range(0, len(seeds), _SEEDS):
        own = runs[runs["seed"].isin(seeds[start : start + _SEEDS])]
        arms = arm_table(own, params["environment"], alpha, minimum)
        verdicts = decide(sorted(params["hypotheses"]), Evidence(probes, arms), alpha, minimum)
        statuses = Counter(verdict.status for verdict in verdicts)
        found.append("validated" in statuses)
        said = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
        print(f"seeds {seeds[start]} to {seeds[start + _SEEDS - 1]}: {said}")
    count, false = len(found), sum(found)
    bound = beta.ppf(0.95, false + 1, count - false)
    print(
        f"{false} of {count} studies validate anything: at most {bound:.1%} do, at 95 % (Clopper-Pearson)"
    )


if __name__ == "__main__":
    main()
