"""Fit the model that ranks causes (diagnosis/checks.py) on the logs of known kinds.

    python -m benchmarks.mistakes.fit

Kinds of the held-out fold, second runs of known kinds, and others' logs have no part in it: score.py counts on them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression

from benchmarks.mistakes.score import HAVE, fitted_on, kind_of, log_of, read_lines
from rlvr_debug.diagnosis.checks import WEIGHTS, features, run_checks
from rlvr_debug.diagnosis.rank import reward_rises
from rlvr_debug.files import write_json


def fitted(lines: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the weights by feature. Every log counts with and without what vLLM alone shows, and its settings.

    A kind counts once, however many runs it has.
    """
    told, right, names = [], [], []
    for line in lines:
        for has in HAVE:
            log = log_of(line, has)
            for slug, found in features(run_checks(log), reward_rises(log)).items():
                told.append(found)
                right.append(slug in kind_of(line).causes)
                names.append(line["kind"])
    counts = {name: names.count(name) for name in names}
    weight = np.array([1 / counts[name] for name in names])
    columns = DictVectorizer(sparse=False)
    model = LogisticRegression(C=1.0, max_iter=5000)
    model.fit(columns.fit_transform(told), right, weight * len(weight) / weight.sum())
    named = zip(columns.get_feature_names_out(), model.coef_[0], strict=True)
    weights = {"intercept": model.intercept_[0], **dict(named)}
    return {name: round(float(value), 3) for name, value in weights.items()}


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None).parse_args()
    known = [x for x in read_lines() if fitted_on(kind_of(x), x["run"])]
    write_json(WEIGHTS, fitted(known))
    print(f"{WEIGHTS}: fitted on {len(known)} logs of {len({x['kind'] for x in known})} kinds")


if __name__ == "__main__":
    main()
