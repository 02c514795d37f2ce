"""The arms of a study and its runs: what each training process is told."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr_debug.blocks import told
from rlvr_debug.causes import load_hypothesis
from rlvr_debug.causes.unnamed import BLOCKS
from rlvr_debug.data.hub import folders
from rlvr_debug.environments.settings import DataSettings
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.study.departures import Arm, Part, departures, stage_broken, with_part
from rlvr_debug.study.model import Case, InterventionArm, Params, SeedsByDesign
from rlvr_debug.study.valid import Wrong, check_budget, check_training
from rlvr_debug.trainers import load_trainer
from rlvr_debug.trainers.base import Run

HEALTHY = "healthy"


def interventions(params: Params) -> dict[str, InterventionArm]:
    """Return every hypothesis' arms by name, as params.yaml has them."""
    return {name: arm for arms in params.arms.values() for name, arm in arms.items()}


def _changes(params: Params, arm: InterventionArm) -> InterventionArm:
    """Return what the arms change that it is `with`, and after them the arm itself."""
    known = interventions(params)
    return functools.reduce(
        lambda a, b: InterventionArm(
            environment=b.environment or a.environment,
            swap=tuple(dict.fromkeys([*a.swap, *b.swap])),
            faults=tuple(dict.fromkeys([*a.faults, *b.faults])),
            **_settings(a, b),
        ),
        [*(_changes(params, known[name]) for name in arm.with_), replace(arm, with_=())],
    )


def _settings(first: Arm | InterventionArm, second: InterventionArm | Case) -> dict[str, Any]:
    """By field, what both say; the second one counts."""
    return {kind: {**getattr(first, kind), **getattr(second, kind)} for kind in BLOCKS}


def faults_of(case: Case) -> tuple[str, ...]:
    """Return the planted ones, and the user's own reward function."""
    return (*case.faults, *filter(None, [case.reward]))


def unmapped(params: Params) -> dict[str, str]:
    """By slug of hypothesis: what the study's trainer has no counterpart for, of arms that are not run."""
    found = {}
    for slug, own in sorted(params.arms.items()):
        missing = [
            f"{name}: {', '.join(parts)}"
            for name, arm in sorted(own.items())
            if (parts := _missing(params, arm))
        ]
        if missing:
            found[slug] = f"trainer {params.trainer} has no counterpart for {'; '.join(missing)}"
    return found


def _missing(params: Params, arm: InterventionArm) -> list[str]:
    changed = _changes(params, arm)
    stages = dict.fromkeys([*changed.swap, *map(stage_broken, changed.faults)])
    case = params.cases.get(params.case, Case())
    options = {**params.options, **case.options, **changed.options}
    return load_trainer(params.trainer).missing(stages, changed.training, options)


def arms(params: Params) -> list[Arm]:
    """The case, the controls, and every hypothesis' interventions that the trainer has a counterpart for.

    The controls are a healthy one per environment in use and, in the case's, one with random rewards.
    An intervention is run both ways: the case with that part mended, and, where the case departs from
    the control in it, the control with that part alone as in the case. The first finds a cause that
    acts by itself, the second one that another defect hides. One that gives a stage a fault is run in the case.
    What the case departs in and no hypothesis changes has such a pair of arms of its own.
    Sorted: the order of keys in params.yaml changes no table, so that it need not rerun one.
    """
    main, healthy = params.environment, told(params.training)
    control = Arm("control", "control", "", main, (), {}, params.options, healthy)
    own = params.cases.get(params.case, Case())
    case = replace(control, name="case", design="case", faults=faults_of(own))
    case = replace(case, **_settings(control, own))

    trainer = load_trainer(params.trainer)
    # vLLM's server is asked after each update whatever an option says
    superfluous = trainer.watching if params.sampler == "vllm" else frozenset()
    repairs, alone = [], []
    for slug, known in sorted(params.arms.items()):
        for name, arm in sorted(known.items()):
            if _missing(params, arm):
                continue
            changed = _changes(params, arm)
            swapped = tuple(fault for fault in case.faults if stage_broken(fault) in changed.swap)
            environment = changed.environment or main
            # the case's rollouts are settings of its own environment
            kept = case if environment == main else replace(case, rollouts={})
            broken = {*map(stage_broken, changed.faults)}
            left = (f for f in case.faults if f not in swapped and stage_broken(f) not in broken)
            settings = _settings(kept, changed)
            # what the environment has anyway changes nothing
            usual = vars(params.environments[environment])
            rollouts = {key: v for key, v in settings["rollouts"].items() if v != usual[key]}
            options = {k: v for k, v in settings["options"].items() if k not in superfluous}
            settings = {**settings, "rollouts": rollouts, "options": options}
            faults = (*left, *changed.faults)
            repairs.append(Arm(name, "repair", slug, environment, faults, **settings))
            departing = _departing(changed, case, control)
            if environment == main and (swapped or departing != InterventionArm()):
                settings = _settings(control, departing)
                alone.append(Arm(f"{name}-alone", "alone", slug, main, swapped, **settings))
    for repair, one in _unnamed(params, case, control):
        repairs += [repair] if _means_something(repair, case, params) else []
        alone += [one] if _means_something(one, case, params) else []
    others = sorted({arm.environment for arm in repairs} - {main})
    controls = [replace(control, name=f"{name}-control", environment=name) for name in others]
    if found := trainer.random_reward(params.options, told(params.command)):
        faults, options = found
        random = replace(control, name="random-reward", design="random_reward")
        controls.append(replace(random, faults=faults, options=options))
    return [case, control, *controls, *repairs, *alone]


def _unnamed(params: Params, case: Arm, control: Arm) -> Iterator[tuple[Arm, Arm]]:
    """Yield of each stage and setting that the case departs in and no hypothesis changes: mended, and alone."""
    if not any(params.arms.values()) or not params.unnamed:
        return
    usual = vars(params.environments[params.environment])
    watching = load_trainer(params.trainer).watching
    covered = set(_covered(params))
    for part in departures(case, control, usual, watching):
        if part not in covered:
            slug = part.slug
            mended, one = with_part(case, control, part), with_part(control, case, part)
            yield (
                replace(mended, name=slug, design="repair", hypothesis=slug),
                replace(one, name=f"{slug}-alone", design="alone", hypothesis=slug),
            )


def _covered(params: Params) -> Iterator[Part]:
    """Yield the stages and settings that arms of causes change about the case."""
    for slug, own in params.arms.items():
        for arm in own.values():
            changed = _changes(params, arm)
            elsewhere = changed.environment not in ("", params.environment)
            if elsewhere or _missing(params, arm) or load_hypothesis(slug).kind != "cause":
                continue
            yield from map(Part, changed.swap)
            yield from (Part(name, block) for block in BLOCKS for name in getattr(changed, block))


def _means_something(arm: Arm, case: Arm, params: Params) -> bool:
    """Whether an arm that nobody asked for can be run: what means nothing together is not told, and no larger budget."""
    try:
        check_training(arm, params.launch.processes)
        check_budget(arm, case)
    except Wrong:
        return False
    return True


def hypotheses_of(params: Params, found: Iterable[Arm | Run]) -> list[str]:
    """Return the slugs of the study's hypotheses, and of what none of them names. found: its arms, or their runs."""
    return sorted({*params.arms, *(arm.hypothesis for arm in found if arm.hypothesis)})


def _departing(changed: InterventionArm, case: Arm, control: Arm) -> InterventionArm:
    """Of what an intervention changes: the settings of the case that are not the control's."""
    found: dict[str, Any] = {}
    for kind in BLOCKS:
        own, right = getattr(case, kind), getattr(control, kind)
        keys = (key for key in getattr(changed, kind) if key in own)
        found[kind] = {key: own[key] for key in keys if own[key] != right.get(key)}
    return InterventionArm(**found)


def seeds_of(params: Params, design: str) -> list[int]:
    """Return the seeds that a fixed design has for arms of this one: params.yaml has a list for all, or one for each."""
    seeds = params.seeds
    if isinstance(seeds, SeedsByDesign):
        return list(getattr(seeds, design) or seeds.others)
    return list(seeds)


def _seeds(params: Params, arm: Arm) -> Sequence[int]:
    """All that runs of this arm may have."""
    if params.design == "fixed":
        return seeds_of(params, arm.design)
    # parameters are checked without SciPy where nothing asks for it
    from rlvr_debug.verdicts.looks import most_seeds

    return [params.first_seed + n for n in most_seeds(arm, params.environment)]


def runs(params: Params) -> Iterator[Run]:
    """Every run of the study, wholly resolved. Arms that are told the same share their runs, and so their seeds.

    Of the sequential design, all that its looks may choose.
    """
    alike: dict[str, list[Arm]] = {}
    for arm in arms(params):
        each = [arm.environment, arm.faults, arm.rollouts, arm.options, arm.training]
        alike.setdefault(json.dumps(each, sort_keys=True), []).append(arm)
    shared = {arm.name: same for same in alike.values() for arm in same}
    for arm in arms(params):
        same = shared[arm.name]
        for seed in dict.fromkeys(s for each in same for s in _seeds(params, each)):
            yield Run(
                arm=arm.name,
                design=arm.design,
                hypothesis=arm.hypothesis,
                environment=arm.environment,
                seed=seed,
                trainer=params.trainer,
                faults=arm.faults,
                rollouts=arm.rollouts,
                options=arm.options,
                training=TrainingSettings(**arm.training),
                trained_as=same[0].name,
            )


def trained_runs(params: Params) -> list[Run]:
    """Return the runs that are trained: one of all that are told the same."""
    return [run for run in runs(params) if run.arm == run.trained_as]


def own_programs(params: Params, root: Path) -> list[str]:
    """The user's reward function and program, as params.yaml names them: files under `root`."""
    faults = (fault for run in runs(params) for fault in run.faults if ":" in fault)
    words = {*params.command.program, *(f.partition(":")[0] for f in faults)}
    return sorted(word for word in words if (root / word).is_file())


def own_rows(settings: DataSettings, root: Path) -> list[str]:
    """Return the user's own files of rows, from `root`; of a folder that `datasets` loads, all."""
    if settings.source == "jsonl":
        return list(filter(None, (settings.path, settings.heldout_path)))
    named = (settings.datasets, settings.heldout_datasets)
    found = (root / folder for text in named if text for folder in folders(text))
    files = {file for folder in found for file in folder.rglob("*") if file.is_file()}
    return sorted(os.path.relpath(file, root) for file in files)
