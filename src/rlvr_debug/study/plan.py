"""What a study will cost, before anything of it runs."""

import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, mean

import numpy as np

from rlvr_debug.causes import in_order, load_hypothesis, phase_of
from rlvr_debug.checkout import ROOT
from rlvr_debug.files import read_jsonl, read_table, read_yaml
from rlvr_debug.models.architectures import architecture_of
from rlvr_debug.study.arms import hypotheses_of, runs, trained_runs, unmapped
from rlvr_debug.study.folder import study_folder
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import study_params
from rlvr_debug.study.resolved import resolve
from rlvr_debug.study.running import check_rows, core_count, jobs_to_do, snakemake_command
from rlvr_debug.trainers import Run
from rlvr_debug.verdicts.looks import LARGEST, NOTHING, Looked, run_out
from rlvr_debug.verdicts.rule import ABSENT, PRESENT

_WIDTH = 79
_TOGETHER = "\u00a0"  # a space at which no line ends
# of musique with the shipped model on one core, seconds per rollout: sampled, and trained on twice
_SECONDS_PER_ROLLOUT = 0.013
_TOLD = read_yaml(Path(__file__).with_name("plan.yaml"))
_JOBS, _TEXTS = _TOLD["jobs"], _TOLD["texts"]
_SECONDS_OF_OTHERS = 1.5
# rows and the report
_BYTES_BESIDE_RUNS = 10_000_000
# weights from which a model is worth a GPU
_REAL = 10_000_000


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
        rollouts = run.training.steps * run.rollouts_per_step
        return rollouts * self.seconds.get(run.environment, self.usual)

    @property
    def evaluation(self) -> float:
        return _seconds("evaluate_run")


def measured_runs(results: Path) -> Iterator[Measured]:
    """Of the trainings that the tables of a finished study name and whose timings are still theirs."""
    table = results / "tables" / "runs.csv"
    if not table.is_file():
        return
    rows = read_table(table)
    if "trained_as" not in rows:
        return
    for row in rows[rows["arm"] == rows["trained_as"]].to_dict("records"):
        folder = results / "runs" / row["environment"] / row["arm"] / str(row["seed"])
        # a program that is not ours tells the seconds of all steps together
        steps, seconds = seconds_of(folder)
        if seconds and steps in (row["steps"], 0):
            # an adapter's weights have two names, and are on the disk once
            files = [file.stat() for file in folder.rglob("*") if file.is_file()]
            size = sum({file.st_ino: file.st_size for file in files}.values())
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
        if runs := list(measured_runs(results)):
            environments = sorted({run.environment for run in runs})
            return Rates(
                {e: mean(r.seconds for r in runs if r.environment == e) for e in environments},
                mean(run.seconds for run in runs),
                mean(run.size for run in runs),
                f"measured on {len(runs)} runs of study {name}",
            )
    # weights are shipped in half the precision that they are trained in
    size = 2 * sum(file.stat().st_size for file in base_model.glob("*.safetensors"))
    source = "measured with trainer own and the shipped model, since no run here was measured"
    return Rates({}, _SECONDS_PER_ROLLOUT, size, source)


def environments_of(params: Params) -> list[str]:
    return sorted({run.environment for run in runs(params)})


def is_real(params: Params) -> bool:
    """Whether some base model is more than the shipped one; one of which nothing is known may be."""
    names = environments_of(params)
    models = (architecture_of(params.base_model_of(name), ROOT) for name in names)
    return any(model is None or model.parameters >= _REAL for model in models)


def _disk(params: Params, trained: Sequence[Run], size: float | None) -> float:
    """Bytes of all trainings and of what is fetched. size: of a training; None: by its weights, in single precision."""
    bases = {name: params.base_model_of(name) for name in environments_of(params)}
    models = {name: architecture_of(base, ROOT) for name, base in bases.items()}
    saved = [
        4 * (model.adapter(run.training.lora_r) if run.training.lora_r else model.parameters)
        for run in trained
        if (model := models[run.environment])
    ]
    one = size if size is not None else fmean(saved or [0.0])
    on_hub = {base: models[name] for name, base in bases.items() if base.revision}
    # they are published in 16 bits
    fetched = sum(2 * model.parameters for model in on_hub.values() if model)
    return len(trained) * one + fetched + _BYTES_BESIDE_RUNS


def _seconds(rule: str) -> float:
    return float(_JOBS.get(rule, {}).get("seconds", _SECONDS_OF_OTHERS))


@dataclass(frozen=True)
class Cost:
    """cpu_seconds: of all jobs; seconds: of wall time, on as many cores as the plan is for."""

    trainings: int
    cpu_seconds: float
    seconds: float


@dataclass(frozen=True)
class Tested:
    """A hypothesis in the order of tests, after its prerequisites, with its trainings and their cost, None where only GPUs would tell.

    missing: why there are none, "" where there are.
    """

    hypothesis: str
    number: str
    priority: str
    phase: int
    after: tuple[str, ...]
    trainings: int
    whole: Cost | None
    missing: str


@dataclass(frozen=True)
class Plan:
    """What a study will run, of a sequential one at most; whole, left, expected: costs, None where only GPUs would tell; disk, free: bytes."""

    study: str
    case: str
    environment: str
    trainer: str
    model: str
    gated: bool
    sequential: bool
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
    gpus: str
    hypotheses: tuple[Tested, ...]
    expected_trainings: int
    expected: Cost | None


def _cost(jobs: Mapping[str, int], training: Sequence[float], cores: int) -> Cost:
    """training: CPU seconds of each run of the study."""
    trainings = jobs.get("train", 0)
    seconds = trainings * mean(training)
    seconds += sum(count * _seconds(rule) for rule, count in jobs.items())
    # a training runs on one core
    longest = max(training) if trainings else 0.0
    return Cost(trainings, seconds, max(seconds / cores, longest))


def planned(params: Params, to_do: Mapping[str, int], cores: int, found: Rates, free: int) -> Plan:
    """to_do: jobs by rule that are not done; free: bytes on the disk."""
    real = is_real(params)
    every, trained = list(runs(params)), trained_runs(params)
    training = [found.training(run) for run in trained]
    seeds = Counter(run.arm for run in every).values()
    sequential, fewer = params.design == "sequential", len(trained)
    if sequential:
        fewer = expected_trainings(resolve(params, ROOT).looked)

    def cost(trainings: int) -> Cost | None:
        environments = len({run.environment for run in trained})
        count = {"training": trainings, "environment": environments, "study": 1}
        jobs = {rule: count[job["per"]] for rule, job in _JOBS.items()}
        # seconds of the shipped model say nothing of one that is a thousand times larger
        return None if real else _cost(jobs, training, cores)

    return Plan(
        study=params.study,
        case=params.case,
        environment=params.environment,
        trainer=params.trainer,
        model=params.base_model.partition("@")[0],
        gated=params.phases == "gated",
        sequential=sequential,
        arms=len({run.arm for run in every}),
        seeds=(min(seeds), max(seeds)),
        runs=len(every),
        trainings=len(trained),
        trainings_left=to_do.get("train", 0),
        cores=cores,
        whole=cost(len(trained)),
        left=None if real else _cost(to_do, training, cores),
        jobs=dict(to_do),
        disk=_disk(params, trained, None if real else found.size),
        free=free,
        rates=found,
        gpus=_TEXTS["gpus"] if real else "",
        hypotheses=tuple(_tested(params, every, cores, None if real else found)),
        expected_trainings=fewer,
        expected=cost(fewer),
    )


# --- how many trainings to expect of a sequential study


_STUDIES = 40  # for each hypothesis that may be the cause
# as arms of the default study have them: what learning gains, and spreads over seeds of arms that learn and of others
_GAIN, _LEARNING, _STILL = 0.25, 0.05, 0.015


def expected_trainings(looked: Looked) -> int:
    """Return the mean over studies in which one hypothesis is the cause, each in turn, and the check sees it; all phases are run."""
    names, owners, layout = looked.layout(looked.highest_phase, NOTHING)
    if not owners:
        return looked.trainings(replace(looked, gated=False).first().seeds)
    cause = np.repeat(np.arange(len(owners)), _STUDIES)[:, None]
    own = layout.owner == cause
    # what is mended learns, and so does a control with a part that does no harm
    learns = np.where(layout.alone, ~own, own)
    whole = np.broadcast_to(
        [False, True], (len(cause), 2)
    )  # the case does not, and the control does
    learns = np.concatenate([whole, learns], -1)
    present = np.where(np.arange(len(owners)) == cause, PRESENT, ABSENT)
    noise = np.random.default_rng(0).standard_normal((*learns.shape, LARGEST))
    gains = (
        np.where(learns, _GAIN, 0.0)[..., None]
        + noise * np.where(learns, _LEARNING, _STILL)[..., None]
    )
    # greedy as sampled
    has = run_out(layout, np.stack([gains, gains], -1), present, looked.bar)
    every = ("case", "control", *names)
    targets = (dict(zip(every, map(int, counts), strict=True)) for counts in has)
    return round(
        fmean(looked.trainings(looked.counts(looked.highest_phase, counts)) for counts in targets)
    )


# --- hypotheses in the order of their tests, and the plan as text


def _tested(
    params: Params, every: Sequence[Run], cores: int, found: Rates | None
) -> Iterator[Tested]:
    """Yield the hypotheses in their order. every: all runs; found: None where only GPUs would tell the cost."""
    needed = {run.name for run in every if not run.hypothesis}
    by_name = {run.name: run for run in every}
    slugs, missing = hypotheses_of(params, every), unmapped(params)
    for slug in in_order(slugs):
        hypothesis = load_hypothesis(slug)
        own = {run.name for run in every if run.hypothesis == slug} - needed
        needed |= own
        cost = None
        if found is not None:
            training = [found.training(by_name[name]) for name in sorted(own)]
            jobs = {"train": len(own), "evaluate_run": len(own)}
            cost = _cost(jobs, training, cores) if own else Cost(0, 0.0, 0.0)
        after = tuple(other for other in hypothesis.prerequisites if other in slugs)
        phase = phase_of(slug, slugs)
        why = "" if own else missing.get(slug, "")
        yield Tested(
            slug, hypothesis.number, hypothesis.priority, phase, after, len(own), cost, why
        )


def plan_text(found: Plan) -> str:
    """At most 79 characters wide where no name is longer."""
    shared = found.runs - found.trainings
    rates, expected = found.rates, found.expected
    per_rollout = ", ".join(f"{name} {s:.4f}" for name, s in rates.seconds.items())
    rate = f"Seconds per rollout: {per_rollout or format(rates.usual, '.4f')}, {rates.source}."
    within = f" ({expected.seconds / 60:.1f} minutes)" if expected else ""
    looks = _TEXTS["looks"].format(found=found, minutes=within)
    rows: list[tuple[str, ...]] = [("trainings", f"{found.trainings}", f"{found.trainings_left}")]
    if found.whole and found.left:
        costs = (found.whole, found.left)
        minutes = f"minutes on {found.cores} core{'s' if found.cores > 1 else ''}"
        rows.append(("CPU hours", *(f"{cost.cpu_seconds / 3600:.2f}" for cost in costs)))
        rows.append((minutes, *(f"{cost.seconds / 60:.1f}" for cost in costs)))
    jobs = ", ".join(f"{count}{_TOGETHER}{rule}" for rule, count in found.jobs.items())
    return "\n".join(
        [
            *_wrapped(
                f"Study {found.study}: case {found.case} on {found.environment}, "
                f"trainer {found.trainer}, model {found.model}."
            ),
            *_wrapped(
                f"{found.arms} arms x {' to '.join(map(str, dict.fromkeys(found.seeds)))} seeds = {found.runs} runs, "
                f"{found.trainings} of them trained"
                + (f"; {shared} share another arm's runs." if shared else ".")
                + (" One seed decides nothing." if found.seeds[1] == 1 else "")
            ),
            *(_wrapped(looks) if found.sequential else []),
            "",
            f"{'':<24}{'at most' if found.sequential else 'whole study':>16}{'not done yet':>16}",
            *(f"{name:<24}{whole:>16}{left:>16}" for name, whole, left in rows),
            f"{'disk, MB':<24}{found.disk / 1e6:>16.0f}  (free: {found.free / 1e6:.0f})",
            "",
            *_phases(found),
            *_wrapped(found.gpus or rate),
            *_wrapped(f"Jobs not done yet: {jobs}." if jobs else "Every job is done."),
            *(_wrapped(_TEXTS["gated"]) if found.gated else []),
        ]
    )


def _phases(found: Plan) -> Iterator[str]:
    """Yield a line for each hypothesis, in the order of their tests."""
    if not found.hypotheses:
        return
    cost = "" if found.whole is None else f"{'minutes':>9}"
    yield f"{'phase':<6}{'hypothesis':<24}{'original':<14}{'priority':<10}{'trainings':>9}{cost}"
    for each in found.hypotheses:
        minutes = "" if each.whole is None else f"{each.whole.seconds / 60:>9.1f}"
        yield (
            f"{each.phase:<6}{each.hypothesis:<24}{each.number:<14}{each.priority:<10}{each.trainings:>9}{minutes}"
        )
        if each.after:
            yield f"{'':<6}  after {', '.join(each.after)}"
        if each.missing:
            yield f"{'':<6}  no experiment with trainer {found.trainer}: use rlvr-debug check"
    yield ""


def _wrapped(text: str) -> Iterable[str]:
    lines = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_TOGETHER, " ") for line in lines]


def study_rates(params: Params, overlay: Path | None) -> Rates:
    """Of the study itself as far as it is run, else of the default one."""
    studies = {params.study: study_folder(params, overlay) / "results"}
    if overlay:
        studies["default"] = ROOT / "results"
    return rates(studies, ROOT / params.base_model_of(params.environment).folder)


def plan(overlay: Path | None, cores: str = "all", every_phase: bool = False) -> Plan:
    """Of the default study or an overlay's: runs, cost, and what Snakemake would do now."""
    count = core_count(cores)
    params = study_params(overlay, every_phase)
    check_rows(params, ROOT, asks_hub=False)
    folder = study_folder(params, overlay)
    return planned(
        params,
        jobs_to_do(folder, snakemake_command(folder, overlay, every_phase)),
        count,
        study_rates(params, overlay),
        shutil.disk_usage(ROOT).free,
    )
