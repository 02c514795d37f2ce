"""Ten healthy studies with seeds of their own: no hypothesis may be validated.

    python -m benchmarks.healthy_studies [--cores 2]

Trains what verdicts need of studies/healthy-ten.yaml (not the random rewards, which none reads), through the
workflow, and judges each three of its seeds as a study of their own, by the code that judges any study.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from scipy.stats import binomtest

from rlvr_debug.checkout import ROOT
from rlvr_debug.files import read_json
from rlvr_debug.study.arms import runs, seeds_of
from rlvr_debug.study.params import load_params
from rlvr_debug.study.running import run_study
from rlvr_debug.verdicts.arms import arm_table
from rlvr_debug.verdicts.decide import Evidence, decide
from rlvr_debug.verdicts.rule import Bar
from rlvr_debug.verdicts.tables import run_table

_SEEDS = 3
_OVERLAY = ROOT / "studies" / "healthy-ten.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cores", default="2")
    args = parser.parse_args()
    params = load_params(ROOT / "params.yaml", _OVERLAY)
    needed = [run for run in runs(params) if run.design != "random_reward"]
    places = {f"results/runs/{r.environment}/{r.trained_as}/{r.seed}" for r in needed}
    baselines = {f"results/baseline/{run.environment}.json" for run in needed}
    files = [*(f"{place}/heldout.json" for place in sorted(places)), *sorted(baselines)]
    # --quiet takes all words up to the next option, so that it stands last
    passed_on = [*files, "results/check.json", "--quiet", "all"]
    if run_study(_OVERLAY, args.cores, passed_on=passed_on):
        sys.exit(1)

    results = ROOT / "studies" / params.study / "results"
    answer = read_json(results / "check.json")
    bar = Bar.of(params.verdicts.alpha, params.verdicts.minimum_effect)
    seeds, found = seeds_of(params, "control"), []
    for start in range(0, len(seeds), _SEEDS):
        three = seeds[start : start + _SEEDS]
        table = run_table([run for run in needed if run.seed in three], results)
        arms = arm_table(table, params.environment, bar)
        verdicts = decide(sorted(params.hypotheses), Evidence(answer, arms), bar)
        statuses = Counter(verdict.status for verdict in verdicts)
        found.append("validated" in statuses)
        said = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
        effects = arms.loc[arms["changes"] != "", "effect"].dropna()
        print(f"seeds {three}: {said}; effects {effects.min():+.3f} to {effects.max():+.3f}")
    count, false = len(found), sum(found)
    bound = binomtest(false, count, alternative="less").proportion_ci().high
    print(
        f"{false} of {count} validate anything: at most {bound:.1%} do, at 95 % (Clopper-Pearson)"
    )


if __name__ == "__main__":
    main()
