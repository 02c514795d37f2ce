"""Result files of a study that nobody ran, where a real one has them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rlvr_debug.blocks import checked, told
from rlvr_debug.checkout import ROOT
from rlvr_debug.files import read_table, write_json, write_jsonl
from rlvr_debug.report.charts import study_charts, write_svg
from rlvr_debug.report.page import report_html
from rlvr_debug.study.arms import runs
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers import SHADOW, Run
from rlvr_debug.verdicts.looks import Look
from rlvr_debug.verdicts.tables import write_tables
from tests.check_answer import case_answer

PARAMS = load_params(ROOT / "params.yaml")
MINIMUM = 0.1
SETTINGS = {
    "alpha": 0.05,
    "minimum_effect": MINIMUM,
    "environment": "musique",
    "training": {"lora_r": 0},
}
REPORT_SETTINGS = {**SETTINGS, "study": "made-up", "case": "sick", "trainer": "own"}
SLUGS = ["hidden-context", "kl-penalty", "library-functionality", "lora-weight-sync"]
BASELINE = 0.1
LONG = "an-arm-with-a-name-that-goes-on-for-long"

# held-out reward of each arm, as it comes out where hidden-context is the cause
CAUSE_FOUND = {
    "case": 0.1,
    "control": 0.5,
    "random-reward": 0.05,
    "gsm8k-control": 0.5,
    "attention-mask": 0.5,
    "attention-mask-alone": 0.1,
    LONG: 0.1,
    "null": 0.1,
    "gsm8k": 0.5,
}


def recorded(text: str = "what?", **changes: Any) -> dict[str, Any]:
    """A line of rollouts.jsonl in which nothing is wrong. text: of its first token."""
    ids, texts, role = [7, 8, 9], [text, " it", " is"], "paa"
    columns = {"ids": ids, "text": texts, "role": role, "sampler": [None, -0.5, -0.25]}
    masks = {"loss": "011", "attention": "111", "trainer": [None, -0.5, -0.25], "reference": None}
    return {
        "step": 1,
        "group": 0,
        "rollout": 0,
        "row": "a-row",
        "reward": 0.5,
        "parts": {},
        "advantage": 0.1,
        "outcome": "answered",
        "turns": 1,
        "call_errors": {},
        "prompt_cut": 0,
        "sampled": columns,
        "trained": {**columns, **masks, "advantage": [None, 0.1, 0.1]},
        **changes,
    }


# what a study has whose runs no look chooses
AT_ONCE = Look(0, 3, {}, more=False)


class Study:
    """Result files of made-up runs, where a real study has them."""

    def __init__(
        self,
        results: Path,
        rewards: Mapping[str, float],
        seeds: Sequence[int] = (0, 1, 2),
        design: str = "fixed",
        unnamed: bool = False,
        faults: Sequence[str] = ("attention-from-loss-mask", "eos-not-trained"),
        hypotheses: Mapping[str, Any] | None = None,
        **training: Any,
    ) -> None:
        usual: dict[str, Any] = {
            "hidden-context": {"arms": {"attention-mask": {"swap": ["attention_mask"]}}},
            "kl-penalty": {
                "arms": {
                    LONG: {"training": {"kl_beta": 0.0}},
                    "null": {"training": {"kl_estimator": "k2"}},
                }
            },
            "library-functionality": {"arms": {"gsm8k": {"environment": "gsm8k"}}},
            "lora-weight-sync": {"arms": {}},
        }
        changes = {
            "case": "sick",
            "cases": {"sick": {"faults": list(faults)}},
            "seeds": list(seeds),
            "design": design,
            "unnamed": unnamed,
            "hypotheses": usual if hypotheses is None else hypotheses,
            "training": {**told(PARAMS.training), "steps": 3, **training},
        }
        self.results = results
        self.params = checked(Params, {**told(PARAMS), **changes}, "params")
        self.runs: list[Run] = list(runs(self.params))
        assert {run.arm for run in self.runs} == set(rewards)
        for environment in ("musique", "gsm8k"):
            write_json(results / "baseline" / f"{environment}.json", self._evaluation(BASELINE))
        for run in self.runs:
            reward = rewards[run.arm] + 0.01 * run.seed
            write_json(self.folder(run) / "heldout.json", self._evaluation(reward))
            steps = [self._step(step, reward) for step in range(1, run.training.steps + 1)]
            write_jsonl(self.folder(run) / "metrics.jsonl", steps)
            write_jsonl(self.folder(run) / "rollouts.jsonl", [recorded()])
            write_json(self.folder(run) / SHADOW, {"steps": run.training.steps, "parted": {}})
        self.check("hidden-context")

    def folder(self, run: Run) -> Path:
        return self.results / "runs" / run.environment / run.trained_as / str(run.seed)

    @staticmethod
    def _evaluation(reward: float) -> dict[str, Any]:
        return {name: {"reward": reward} for name in ("sampled", "greedy")}

    @staticmethod
    def _step(step: int, reward: float) -> dict[str, Any]:
        return {
            "step": step,
            "reward": BASELINE + (reward - BASELINE) * step / 3,
            "grad_norm": 1.0 / step,
            "kl": 0.01 * step,
            "sampler_gap/mean_abs": 0.001,
            "sampled_tokens": 100,
            "trained_tokens": 90,
        }

    def check(self, *present: str, said: str = "") -> None:
        """Write the check of the case, in which the mechanisms of these hypotheses are there."""
        write_json(self.results / "check.json", case_answer(*present, said=said))

    def tables(self, settings: Mapping[str, Any] = SETTINGS) -> dict[str, pd.DataFrame]:
        owners = (run.hypothesis for run in self.runs if run.hypothesis)
        slugs = dict.fromkeys([*SLUGS, *owners], 1)
        write_tables(self.runs, slugs, {}, AT_ONCE, settings, self.results)
        return self.read()

    def read(self) -> dict[str, pd.DataFrame]:
        return {path.stem: read_table(path) for path in (self.results / "tables").glob("*.csv")}

    def charts(self) -> dict[str, str]:
        folder = self.results / "charts"
        for chart in study_charts():
            write_svg(chart.draw(self.read(), MINIMUM), folder / f"{chart.name}.svg")
        return {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.svg")}

    def record(self, arm: str, rollouts: Sequence[Mapping[str, Any]]) -> None:
        """What every run of this arm recorded."""
        for run in self.runs:
            if run.arm == arm:
                write_jsonl(self.folder(run) / "rollouts.jsonl", rollouts)

    def report(self, settings: Mapping[str, Any] = REPORT_SETTINGS) -> str:
        return report_html(self.results, settings)
