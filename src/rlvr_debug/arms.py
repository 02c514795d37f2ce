"""The arms of a study and its runs: what each training process is told."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_debug.faults import stage_of
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.trainers import trl_config

__all__ = [
    "DESIGNS",
    "HEALTHY",
    "Arm",
    "Run",
    "arms",
    "faults_of",
    "own_programs",
    "own_rows",
    "read_runs",
    "runs",
    "seeds_of",
    "stage_broken",
    "unmapped",
    "without",
]

HEALTHY = "healthy"
Params = dict[str, Any]

# case: as it is; control: healthy; random_reward: the control with a reward that says nothing; repair: the
# case with one part as in the control; alone: the control with one part as in the case
DESIGNS = ("case", "control", "random_reward", "repair", "alone")


@dataclass(frozen=True)
class Arm:
    """One way to run. `hypothesis` is "" for the case and the controls.

    faults: names of planted ones, or of a user's own reward function, `file.py:name`.
    rollouts: what its training rollouts change about the environment's settings; evaluation never does.
    options: settings that only the study's trainer knows.
    """

    name: str
    design: str
    hypothesis: str
    environment: str
    faults: tuple[str, ...]
    rollouts: Mapping[str, Any]
    options: Mapping[str, Any]
    training: Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """One training run, wholly resolved: all that a training process is told.

    trained_as: the first arm of the study that is told the same, and whose results these are: an arm
    that mends what the case has right is the case.
    """

    arm: str
    design: str
    hypothesis: str
    environment: str
    seed: int
    trainer: str
    faults: tuple[str, ...]
    rollouts: Mapping[str, Any]
    options: Mapping[str, Any]
    training: TrainingSettings
    trained_as: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "training": vars(self.training)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Run:
        return Run(
            **{
                **value,
                "faults": tuple(value["faults"]),
                "training": TrainingSettings(**value["training"]),
            }
        )


@dataclass(frozen=True)
class _Changes:
    """What an intervention changes about the case."""

    environment: str | None
    swap: tuple[str, ...]
    rollouts: Mapping[str, Any]
    options: Mapping[str, Any]
    training: Mapping[str, Any]


def _changes(params: Params, arm: Mapping[str, Any]) -> _Changes:
    """Of an arm's own and, before them, of the arms that it is `with`."""
    known = {name: each for h in params["hypotheses"].values() for name, each in h["arms"].items()}
    own = _Changes(
        arm.get("environment"),
        tuple(arm.get("swap", ())),
        arm.get("rollouts", {}),
        arm.get("options", {}),
        arm.get("training", {}),
    )
    return functools.reduce(
        lambda a, b: _Changes(
            b.environment or a.environment,
            tuple(dict.fromkeys(a.swap + b.swap)),
            {**a.rollouts, **b.rollouts},
            {**a.options, **b.options},
            {**a.training, **b.training},
        ),
        [*(_changes(params, known[name]) for name in arm.get("with", ())), own],
    )


def faults_of(case: Mapping[str, Any]) -> tuple[str, ...]:
    """Of params.yaml's case: the planted ones, and the user's own reward function."""
    return (*case.get("faults", ()), *([case["reward"]] if "reward" in case else []))


def stage_broken(fault: str) -> str:
    """By a planted fault, or by a user's own reward function."""
    return "score" if ":" in fault else stage_of(fault)


def without(trainer: str, stages: Iterable[str], training: Mapping[str, Any]) -> list[str]:
    """Which of these stages, broken or swapped, and settings a trainer that is not ours has no counterpart for."""
    known = trl_config.STAGES if trainer == "trl" else ()
    missing = [f"stage {stage}" for stage in stages if stage not in known]
    return missing + (trl_config.unmapped(training) if trainer == "trl" else [])


def unmapped(params: Params) -> dict[str, str]:
    """By slug of hypothesis: what the study's trainer has no counterpart for, of arms that are not run."""
    found = {}
    for slug, hypothesis in sorted(params["hypotheses"].items()):
        missing = [
            f"{name}: {', '.join(parts)}"
            for name, arm in sorted(hypothesis["arms"].items())
            if (parts := _missing(params, arm))
        ]
        if missing:
            found[slug] = f"trainer {params['trainer']} has no counterpart for " + "; ".join(
                missing
            )
    return found


def _missing(params: Params, arm: Mapping[str, Any]) -> list[str]:
    if params["trainer"] == "own":
        return []
    changed = _changes(params, arm)
    return without(params["trainer"], changed.swap, changed.training)


def arms(params: Params) -> list[Arm]:
    """The case, the controls, and every hypothesis' interventions that the trainer has a counterpart for.

    The controls are a healthy one per environment in use and, in the case's, one with random rewards.
    An intervention is run both ways: the case with that part mended, and, where the case departs from
    the control in it, the control with that part alone as in the case. The first finds a cause that
    acts by itself, the second one that another defect hides.
    Sorted: the order of keys in params.yaml changes no table, so that it need not rerun one.
    """
    main, healthy = params["environment"], params["training"]
    case = params["cases"].get(params["case"], {})
    faults = faults_of(case)
    training = {**healthy, **case.get("training", {})}
    usual = params["options"]
    rollouts, options = case.get("rollouts", {}), {**usual, **case.get("options", {})}

    repairs, alone = [], []
    for slug, hypothesis in sorted(params["hypotheses"].items()):
        for name, arm in sorted(hypothesis["arms"].items()):
            if _missing(params, arm):
                continue
            changed = _changes(params, arm)
            environment = changed.environment or main
            # the case's are settings of its own environment
            kept = rollouts if environment == main else {}
            mended = {key: value for key, value in kept.items() if key not in changed.rollouts}
            repairs.append(
                Arm(
                    name,
                    "repair",
                    slug,
                    environment,
                    tuple(fault for fault in faults if stage_broken(fault) not in changed.swap),
                    {**mended, **changed.rollouts},
                    {**options, **changed.options},
                    {**training, **changed.training},
                )
            )
            broken = tuple(fault for fault in faults if stage_broken(fault) in changed.swap)
            departing = {
                key: training[key] for key in changed.training if training[key] != healthy[key]
            }
            own = {
                key: options[key]
                for key in changed.options
                if key in options and options[key] != usual.get(key)
            }
            seen = {key: rollouts[key] for key in changed.rollouts if key in rollouts}
            if environment == main and (broken or departing or own or seen):
                alone.append(
                    Arm(
                        f"{name}-alone",
                        "alone",
                        slug,
                        main,
                        broken,
                        seen,
                        {**usual, **own},
                        {**healthy, **departing},
                    )
                )
    others = sorted({arm.environment for arm in repairs} - {main})
    controls = [
        Arm("control" if e == main else f"{e}-control", "control", "", e, (), {}, usual, healthy)
        for e in [main, *others]
    ]
    return [
        Arm("case", "case", "", main, faults, rollouts, options, training),
        *controls,
        *_random_reward(params),
        *repairs,
        *alone,
    ]


def _random_reward(params: Params) -> list[Arm]:
    """Of a program that is not ours, only where params.yaml says by which options it rewards at random."""
    options: dict[str, Any] = params["options"]
    faults: tuple[str, ...] = ("random-reward",)
    if params["trainer"] == "command":
        if "random_reward" not in params["command"]:
            return []
        options, faults = {**options, **params["command"]["random_reward"]}, ()
    main, healthy = params["environment"], params["training"]
    return [Arm("random-reward", "random_reward", "", main, faults, {}, options, healthy)]


def seeds_of(params: Params, design: str) -> list[int]:
    """Of arms of this design: params.yaml has one list for all, or lists by design."""
    seeds = params["seeds"]
    return list(seeds if isinstance(seeds, list) else seeds.get(design, seeds["others"]))


def runs(params: Params) -> Iterator[Run]:
    """Every run of the study, wholly resolved. Arms that are told the same share their runs, and so their seeds."""
    alike: dict[str, list[Arm]] = {}
    for arm in arms(params):
        told = [arm.environment, arm.faults, arm.rollouts, arm.options, arm.training]
        alike.setdefault(json.dumps(told, sort_keys=True), []).append(arm)
    shared = {arm.name: same for same in alike.values() for arm in same}
    for arm in arms(params):
        same = shared[arm.name]
        for seed in dict.fromkeys(s for each in same for s in seeds_of(params, each.design)):
            yield Run(
                arm=arm.name,
                design=arm.design,
                hypothesis=arm.hypothesis,
                environment=arm.environment,
                seed=seed,
                trainer=params["trainer"],
                faults=arm.faults,
                rollouts=arm.rollouts,
                options=arm.options,
                training=TrainingSettings(**arm.training),
                trained_as=same[0].name,
            )


def own_programs(params: Params, root: Path) -> list[str]:
    """The user's reward function and program, as params.yaml names them: files under `root`."""
    faults = (fault for run in runs(params) for fault in run.faults if ":" in fault)
    words = {*params["command"].get("program", ()), *(f.partition(":")[0] for f in faults)}
    return sorted(word for word in words if (root / word).is_file())


def own_rows(settings: Mapping[str, Any]) -> list[str]:
    """The user's own files of rows. settings: an environment's under `data`."""
    found = (settings.get(key) for key in ("path", "heldout_path"))
    return [path for path in found if path and settings["source"] == "jsonl"]


def read_runs(path: Path) -> list[Run]:
    """From a JSON list of what `Run.to_json` returns."""
    return [Run.from_json(run) for run in json.loads(path.read_text(encoding="utf-8"))]
