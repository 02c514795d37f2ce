"""Studies of runs that nobody trained: a case, its control and more arms, each value that of one seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from rlvr_debug.verdicts.decide import Evidence, Verdict, decide
from rlvr_debug.verdicts.rule import Bar, arm_table
from tests.check_answer import CAUSES, case_answer

ALPHA, MINIMUM = 0.05, 0.1
BAR = Bar.of(ALPHA, MINIMUM)
CAUSE = "advantage-scaling"


class Study:
    """Runs of a case and its control, and those of more arms; each value is that of one seed."""

    def __init__(
        self,
        case: Sequence[float] = (-0.01, 0.0, 0.01),
        control: Sequence[float] = (0.4, 0.41, 0.39),
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self.add("case", "case", "", case)
        self.add("control", "control", "", control)

    def add(
        self,
        arm: str,
        design: str,
        hypothesis: str,
        gains: Sequence[float],
        greedy: Sequence[float] | None = None,
        environment: str = "musique",
    ) -> Study:
        self.rows += [
            {
                "arm": arm,
                "design": design,
                "hypothesis": hypothesis,
                "environment": environment,
                "changes": "" if design == "case" else arm,
                "seed": seed,
                "gain": gain,
                "gain_greedy": gain_greedy,
            }
            for seed, (gain, gain_greedy) in enumerate(
                zip(gains, gains if greedy is None else greedy, strict=True)
            )
        ]
        return self

    def repair(self, gains: Sequence[float], greedy: Sequence[float] | None = None) -> Study:
        return self.add(f"mend-{len(self.rows)}", "repair", CAUSE, gains, greedy)

    def alone(self, gains: Sequence[float], greedy: Sequence[float] | None = None) -> Study:
        return self.add(f"mend-{len(self.rows)}-alone", "alone", CAUSE, gains, greedy)

    def arms(self) -> pd.DataFrame:
        return arm_table(pd.DataFrame(self.rows), "musique", BAR)

    def verdict(
        self, *, fails: bool | None = True, slug: str = CAUSE, whole_run: bool = True
    ) -> Verdict:
        """fails: whether the check finds the cause's mechanism; None: it saw nothing. whole_run: of all steps."""
        evidence = Evidence(checked(fails), self.arms(), whole_run=[slug] if whole_run else [])
        found = decide([slug], evidence, BAR)
        assert len(found) == 1
        return found[0]


def checked(present: bool | None) -> Mapping[str, Any]:
    """Return a check in which every mechanism is there, or none; None: of which nothing was seen."""
    return {} if present is None else case_answer(*(CAUSES if present else ()))


def around(value: float, spread: float = 0.01) -> tuple[float, float, float]:
    return (value - spread, value, value + spread)
