"""How far a study is: its trainings, done and under way, from the files that they leave as they go."""

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal, get_args

from rlvr_debug.errors import InputError
from rlvr_debug.files import read_jsonl, written_since
from rlvr_debug.grpo.settings import SMOOTHED
from rlvr_debug.processes import failure
from rlvr_debug.study.folder import last_run
from rlvr_debug.study.plan import Rates, is_real, seconds_of
from rlvr_debug.study.resolved import Study
from rlvr_debug.study.running import runs_to_do
from rlvr_debug.trainers import Run

State = Literal[
    "training", "evaluating", "failed", "interrupted", "trained", "done", "waiting", "later"
]
# what calls for a look comes first; later: no look has chosen it, or opened its phase
STATES: tuple[State, ...] = get_args(State)
# of a hypothesis: none of its own arms has begun, some have, or all are done
Tested = Literal["pending", "testing", "tested"]
_LEFT = ("training", "evaluating", "interrupted", "trained", "waiting")


@dataclass(frozen=True)
class ToDo:
    """jobs: what Snakemake would have run (runs_to_do) at that time, in seconds of the epoch."""

    jobs: frozenset[tuple[str, str]]
    asked: float

    def has(self, rule: str, run: Run, result: Path) -> bool:
        """Whether that job of the run has still to be run, though its result may be there from before."""
        asked_for = (rule, run.name) in self.jobs and not written_since(result, self.asked)
        return asked_for or not result.exists()


@dataclass(frozen=True)
class RunStatus:
    """How far one training is; reward: mean of its last five steps; seconds_left: of a processor, None where nothing was measured."""

    environment: str
    arm: str
    seed: int
    state: State
    step: int
    steps: int
    reward: float | None
    seconds_left: float | None


@dataclass(frozen=True)
class StudyStatus:
    """at_work: whether somebody runs it now; at_a_time: trainings and evaluations under way; hypotheses: by slug."""

    study: str
    at_work: bool
    at_a_time: int
    runs: Sequence[RunStatus]
    hypotheses: Mapping[str, Tested]

    def count(self) -> Mapping[State, int]:
        """In the order of STATES, of those that there are."""
        states = Counter(run.state for run in self.runs)
        return {state: states[state] for state in STATES if state in states}

    def lines(self, verbose: bool) -> list[list[RunStatus]]:
        """Return the trainings of each line, in the order of STATES: those of an arm that are equally far.

        verbose: each has its own; without, those that a later look may choose have none.
        """
        lines: dict[Any, list[RunStatus]] = {}
        for run in sorted(self.runs, key=lambda run: STATES.index(run.state)):
            if verbose or run.state != "later":
                key = (run.environment, run.arm, run.state, run.step, verbose and run.seed)
                lines.setdefault(key, []).append(run)
        return list(lines.values())

    @property
    def processor_seconds_left(self) -> float | None:
        """For all that is not done; of a study at work, but for what failed."""
        left = [run.seconds_left for run in self.runs if self._is_left(run)]
        known = [seconds for seconds in left if seconds is not None]
        return sum(known) if len(known) == len(left) else None

    @property
    def seconds_left(self) -> float | None:
        """Return the wall time left at the current pace; None if nothing runs or was measured."""
        total = self.processor_seconds_left
        if total == 0:
            return 0.0
        if total is None or not self.at_a_time:
            return None
        longest = max(run.seconds_left or 0.0 for run in self.runs if self._is_left(run))
        return max(total / self.at_a_time, longest)

    def _is_left(self, run: RunStatus) -> bool:
        return run.state in _LEFT or (run.state == "failed" and not self.at_work)

    def to_json(self) -> dict[str, Any]:
        return {
            "study": self.study,
            "at_work": self.at_work,
            "at_a_time": self.at_a_time,
            "count": dict(self.count()),
            "seconds_left": self.seconds_left,
            "processor_seconds_left": self.processor_seconds_left,
            "hypotheses": dict(self.hypotheses),
            "runs": [asdict(run) for run in self.runs],
        }


def to_do_now(folder: Path, command: list[str]) -> ToDo:
    """command: snakemake_command's of the study. Takes seconds."""
    asked = time.time()
    return ToDo(frozenset(runs_to_do(folder, command)), asked)


def study_status(study: Study, folder: Path, to_do: ToDo, usual: Rates) -> StudyStatus:
    """Look at what the study's runs left so far; usual: rates for what nothing was measured of yet."""
    now = _Now(folder, to_do, *last_run(folder))
    chosen = study.chosen(study.last_look(folder / "results"))
    later = set(study.trained) - {run.name for run in chosen}
    seen = [now.look(run, name in later) for name, run in study.trained.items()]
    measured: dict[str, list[float]] = defaultdict(list)
    for one in seen:
        if one.seconds_per_step:
            per_rollout = one.seconds_per_step / one.run.rollouts_per_step
            measured[one.run.environment].append(per_rollout)
    documented = None if is_real(study.params) else usual
    found = [
        RunStatus(
            *(one.run.environment, one.run.arm, one.run.seed, one.state),
            *(len(one.rows), one.run.training.steps, one.reward),
            _seconds_left(one, measured.get(one.run.environment), documented),
        )
        for one in seen
    ]
    at_a_time = sum(one.state in ("training", "evaluating") for one in seen)
    tested = _tested(study, {one.run.name: one.state for one in seen})
    return StudyStatus(study.params.study, now.at_work, at_a_time, found, tested)


def _tested(study: Study, states: Mapping[str, State]) -> dict[str, Tested]:
    """Return how far each hypothesis is, by the state of its own arms' runs by name."""
    found: dict[str, Tested] = {}
    for slug in sorted(study.phases):
        own = {states[run.name] for run in study.runs if run.hypothesis == slug}
        # what is not chosen is not missing where something of the hypothesis was run
        left = own - {"later"}
        began: Tested = "tested" if left == {"done"} else "testing"
        found[slug] = "pending" if left <= {"waiting"} else began
    return found


@dataclass(frozen=True)
class _Seen:
    """Of one training: what it recorded, and the seconds of that, 0 where they are not known."""

    run: Run
    state: State
    rows: Sequence[Mapping[str, Any]]
    seconds: float

    @property
    def reward(self) -> float | None:
        last = [row["reward"] for row in self.rows[-SMOOTHED:] if row.get("reward") is not None]
        return mean(last) if last else None

    @property
    def seconds_per_step(self) -> float:
        return self.seconds / len(self.rows) if self.rows else 0.0


@dataclass(frozen=True)
class _Now:
    """The study's files at this moment. begun: since when a log is of the run that is or was the last one."""

    folder: Path
    to_do: ToDo
    at_work: bool
    begun: float

    def look(self, run: Run, later: bool) -> _Seen:
        place = self.folder / "results" / "runs" / run.name
        if not self.to_do.has("train", run, place / "metrics.jsonl"):
            state: State = "done"
            if self.to_do.has("evaluate_run", run, place / "heldout.json"):
                state = self._under_way("evaluate_run", run) or "trained"
            return _Seen(run, state, _read(place / "metrics.jsonl"), seconds_of(place)[1])
        rows, seconds = _read(place / "attempt" / "out" / "metrics.jsonl"), 0.0
        for folder in sorted(place.glob("checkpoint/[0-9]*")):
            # a checkpoint goes when the next one is whole
            with suppress(InputError):
                rows, seconds = _read(folder / "metrics.jsonl") or rows, seconds_of(folder)[1]
        state = self._under_way("train", run) or ("interrupted" if rows else "waiting")
        return _Seen(run, "later" if later and state == "waiting" else state, rows, seconds)

    def _under_way(self, rule: str, run: Run) -> State | None:
        """What the log of that job says, if the job began in this run of the study."""
        log = self.folder / "logs" / rule / f"{run.name}.log"
        if not written_since(log, self.begun):
            return None
        if failure(log):
            return "failed"
        if not self.at_work:
            # a job that ended left its file, though changed code may ask for another
            ended = (self.folder / "results" / "runs" / run.name / "metrics.jsonl").is_file()
            return "interrupted" if rule == "train" and not ended else None
        return "training" if rule == "train" else "evaluating"


def _seconds_left(
    one: _Seen, measured: Sequence[float] | None, usual: Rates | None
) -> float | None:
    """Return those of a training and its held-out evaluation, by its own steps, by others' seconds per rollout, or as usual."""
    if one.state == "done":
        return 0.0
    # of a model of which nothing is known, evaluation is not counted
    evaluation = usual.evaluation if usual else 0.0
    if one.state in ("trained", "evaluating"):
        return evaluation
    each, steps = one.seconds_per_step, one.run.training.steps
    if not each and measured:
        each = mean(measured) * one.run.rollouts_per_step
    elif not each and usual:
        each = usual.training(one.run) / steps
    elif not each:
        return None
    return each * (steps - len(one.rows)) + evaluation


def _read(file: Path) -> list[dict[str, Any]]:
    """Up to a line that is not whole yet."""
    rows: list[dict[str, Any]] = []
    with suppress(InputError):
        rows.extend(row for _, row in read_jsonl(file))
    return rows
