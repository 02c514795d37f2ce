"""What a study will cost, before anything of it runs."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import pandas as pd

from rlvr_debug.arms import Run, runs
from rlvr_debug.config import ROOT, load_params
from rlvr_debug.files import read_jsonl
from rlvr_debug.models.places import base_model_of
from rlvr_debug.reporting.gpu_plan import disk_bytes, gpu_lines
from rlvr_debug.workspace import core_count, jobs_to_do, snakemake_command, study_folder

__all__ = [
    "Cost",
    "Measured",
    "Plan",
    "Rates",
    "measured_runs",
    "plan",
    "plan_text",
    "planned",
    "rates",
    "seconds_of",
    "study_rates",
]

_WIDTH = 79
# of musique with the shipped model on one core, seconds per rollout: sampled, and trained on twice
_SECONDS_PER_ROLLOUT = 0.013
# of each job beside its rollouts: starting Python and loading libraries, or all that it does
_SECONDS = {
    "train": 5.0,
    "evaluate_run": 6.0,
    "evaluate_baseline": 5.0,
    "audit_rewards": 8.0,
    "probe": 7.0,
}
_SECONDS_OF_OTHERS = 1.5
_ONCE = ("probe", "write_tables", "draw_charts", "write_report")
_PER_ENVIRONMENT = ("prepare_data", "evaluate_baseline", "audit_rewards")
# rows and the report
_BYTES_BESIDE_RUNS = 10_000_000


@dataclass(frozen=True)
class Measured:
    """One finished training: CPU seconds per rollout, and the bytes of its folder."""

    environment: str
    seconds: float
    size: int


@dataclass(frozen=True)
class Rates:
    """CPU seconds per rollout by environment, `usual` where it has none; bytes per run."""

    seconds: Mapping[str, float]
    usual: float
    size: float
    source: str

    def training(self, run: Run) -> float:
        """CPU seconds of this run, scaled by steps and rollouts."""
        return rollouts(run) * self.seconds.get(run.environment, self.usual)

    @property
    def evaluation(self) -> float:
        """CPU seconds of one on held-out rows."""
        return _SECONDS["evaluate_run"]


def rollouts(run: Run) -> int:
    return run.training.steps * run.training.prompts_per_step * run.training.group_size


def measured_runs(results: Path) -> Iterator[Measured]:
    """Of the trainings that the tables of a finished study name and whose timings are still theirs."""
    table = results / "tables" / "runs.csv"
    if not table.is_file():
        return
    rows = pd.read_csv(table, keep_default_na=False)
    if "trained_as" not in rows:
        return
    for row in rows[rows["arm"] == rows["trained_as"]].to_dict("records"):
        folder = results / "runs" / row["environment"] / row["arm"] / str(row["seed"])
        # a program that is not ours tells the seconds of all steps together
        steps, seconds = seconds_of(folder)
        if seconds and steps in (row["steps"], 0):
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            yield Measured(row["environment"], seconds / row["rollouts"], size)


def seconds_of(folder: Path) -> tuple[int, float]:
    """The last step in the timings that lie there, 0 where they are of all together, and their seconds."""
    if not (folder / "timings.jsonl").is_file():
        return 0, 0.0
    timings = [timing for _, timing in read_jsonl(folder / "timings.jsonl")]
    last = timings[-1].get("step", 0) if timings else 0
    return last, sum(sum(timing.values()) - timing.get("step", 0) for timing in timings)


def rates(studies: Mapping[str, Path], base_model: Path) -> Rates:
    """From the first of these studies (name -> results) with measured runs, else documented constants."""
    for name, results in studies.items():
        if found := list(measured_runs(results)):
            by_environment = {
                environment: mean(run.seconds for run in found if run.environment == environment)
                for environment in sorted({run.environment for run in found})
            }
            source = f"measured on {len(found)} runs of study {name}"
            usual = mean(run.seconds for run in found)
            return Rates(by_environment, usual, mean(run.size for run in found), source)
    # weights are shipped in half the precision that they are trained in
    size = 2 * sum(file.stat().st_size for file in base_model.glob("*.safetensors"))
    source = "a constant of trainer own and the shipped model: no runs were measured here"
    return Rates({}, _SECONDS_PER_ROLLOUT, size, source)


def _trained(params: Mapping[str, Any]) -> list[Run]:
    return [run for run in runs(dict(params)) if run.arm == run.trained_as]


def _all_jobs(trained: Sequence[Run]) -> dict[str, int]:
    environments = len({run.environment for run in trained})
    return {
        **dict.fromkeys(("train", "evaluate_run"), len(trained)),
        **dict.fromkeys(_PER_ENVIRONMENT, environments),
        **dict.fromkeys(_ONCE, 1),
    }


@dataclass(frozen=True)
class Cost:
    """cpu_seconds: of all jobs; seconds: of wall time, on as many cores as the plan is for."""

    trainings: int
    cpu_seconds: float
    seconds: float


@dataclass(frozen=True)
class Plan:
    """What a study will run. whole, left: all of it, and what is not done; None where only GPUs would tell
    (gpus: what they would take, in lines). seeds: the fewest and the most of an arm. jobs: not done, by
    rule; disk, free: bytes.
    """

    study: str
    case: str
    environment: str
    trainer: str
    model: str
    gated: bool
    arms: int
    seeds: tuple[int, int]
    runs: int
    trainings: int
    trainings_left: int
    cores: int
    whole: Cost | None
    left: Cost | None
    jobs: Mapping[str, int]
    disk: float
    free: int
    rates: Rates
    gpus: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _cost(jobs: Mapping[str, int], training: Sequence[float], cores: int) -> Cost:
    """training: CPU seconds of each run of the study."""
    trainings = jobs.get("train", 0)
    seconds = trainings * mean(training) + sum(
        count * _SECONDS.get(rule, _SECONDS_OF_OTHERS) for rule, count in jobs.items()
    )
    # a training runs on one core
    longest = max(training) if trainings else 0.0
    return Cost(trainings, seconds, max(seconds / cores, longest))


def planned(
    params: Mapping[str, Any], to_do: Mapping[str, int], cores: int, found: Rates, free: int
) -> Plan:
    """to_do: jobs by rule that are not done; free: bytes on the disk."""
    gpus = gpu_lines(params, to_do.get("train", 0), ROOT)
    every, trained = list(runs(dict(params))), _trained(params)
    training = [found.training(run) for run in trained]
    seeds = Counter(run.arm for run in every).values()
    # seconds of the shipped model say nothing of one that is a thousand times larger
    whole, left = (
        None if gpus else _cost(jobs, training, cores) for jobs in (_all_jobs(trained), to_do)
    )
    one = disk_bytes(params, ROOT) if gpus else found.size
    return Plan(
        study=params["study"],
        case=params["case"],
        environment=params["environment"],
        trainer=params["trainer"],
        model=params["base_model"].partition("@")[0],
        gated=params["phases"] == "gated",
        arms=len({run.arm for run in every}),
        seeds=(min(seeds), max(seeds)),
        runs=len(every),
        trainings=len(trained),
        trainings_left=to_do.get("train", 0),
        cores=cores,
        whole=whole,
        left=left,
        jobs=dict(to_do),
        disk=len(trained) * one + _BYTES_BESIDE_RUNS,
        free=free,
        rates=found,
        gpus=gpus,
    )


def plan_text(found: Plan) -> str:
    """At most 79 characters wide where no name is longer."""
    shared = found.runs - found.trainings
    rows: list[tuple[str, ...]] = [("trainings", f"{found.trainings}", f"{found.trainings_left}")]
    if found.whole and found.left:
        plural = "s" if found.cores > 1 else ""
        rows += [
            (
                "CPU hours",
                *(f"{cost.cpu_seconds / 3600:.2f}" for cost in (found.whole, found.left)),
            ),
            (
                f"minutes on {found.cores} core{plural}",
                *(f"{cost.seconds / 60:.1f}" for cost in (found.whole, found.left)),
            ),
        ]
    return "\n".join(
        [
            *_wrapped(
                f"Study {found.study}: case {found.case} on {found.environment}, "
                f"trainer {found.trainer}, model {found.model}."
            ),
            *_wrapped(
                f"{found.arms} arms x {' to '.join(map(str, dict.fromkeys(found.seeds)))} seeds = {found.runs} runs, "
                f"{found.trainings} of them trained"
                + (f"; {shared} are told the same as another arm's." if shared else ".")
            ),
            "",
            f"{'':<24}{'whole study':>16}{'not done yet':>16}",
            *(f"{name:<24}{whole:>16}{left:>16}" for name, whole, left in rows),
            f"{'disk, MB':<24}{found.disk / 1e6:>16.0f}  (free: {found.free / 1e6:.0f})",
            *([*found.gpus, ""] if found.gpus else ["", *_wrapped(_rate(found.rates))]),
            "Jobs not done yet:" if found.jobs else "Every job is done.",
            *(f"  {rule:<22}{count:>16}" for rule, count in found.jobs.items()),
            *(_wrapped(_GATED) if found.gated else []),
        ]
    )


def _rate(found: Rates) -> str:
    per_rollout = ", ".join(f"{name} {s:.4f}" for name, s in found.seconds.items())
    return f"Seconds per rollout: {per_rollout or format(found.usual, '.4f')}, {found.source}."


_GATED = (
    "Phases are gated: the study ends after the first phase that finds a cause, and a later "
    "phase's jobs are listed only once it is needed."
)


def _wrapped(text: str) -> Iterable[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def study_rates(params: Mapping[str, Any], overlay: Path | None) -> Rates:
    """Of the study itself as far as it is run, else of the default one."""
    studies = {params["study"]: study_folder(dict(params), overlay) / "results"}
    if overlay:
        studies["default"] = ROOT / "results"
    return rates(studies, ROOT / base_model_of(params, params["environment"]).folder)


def plan(overlay: Path | None, cores: str = "all", every_phase: bool = False) -> Plan:
    """Of the default study or an overlay's: runs, cost, and what Snakemake would do now."""
    count = core_count(cores)
    params = load_params(Path(os.path.relpath(ROOT)) / "params.yaml", overlay)
    if every_phase:
        params["phases"] = "all"
    folder = study_folder(params, overlay)
    return planned(
        params,
        jobs_to_do(snakemake_command(folder, overlay, every_phase)),
        count,
        study_rates(params, overlay),
        shutil.disk_usage(ROOT).free,
    )
