"""From hypotheses to runs: what each arm changes about the case, and all that a training process is given.

A cause declares interventions (causes/__init__.py). In params.yaml an intervention is an Arm, with values for this study's
case; what comes of it is a Run: the case with the arm's changes, and the control with that part as in the case.
"""

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr_debug.blocks import told
from rlvr_debug.causes import Intervention, Times, hypothesis_names, load_hypothesis, stage_of
from rlvr_debug.causes.unnamed import BLOCKS, unnamed_slug
from rlvr_debug.errors import InputError, hint
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.study.model import Arm, Params, SeedsByDesign, TestedHypothesis
from rlvr_debug.study.wrong import Wrong, check_budget, check_training
from rlvr_debug.trainers import Run, load_trainer

# --- interventions of causes as arms


_DIGITS = 12  # of a product, so that 3 times 4e-4 is 1.2e-3


def filled(params: Params, path: Path) -> Params:
    """Return the parameters with every arm spelled out: `all`, a hypothesis without `arms`, and an arm `{}` are the causes' own."""
    given = params.hypotheses
    if isinstance(given, str):
        given = {slug: TestedHypothesis() for slug in hypothesis_names()}
    spelled = {
        slug: replace(tested, arms=_spelled(params, slug, tested.arms, path))
        for slug, tested in given.items()
    }
    return replace(params, hypotheses=spelled)


def _spelled(
    params: Params, slug: str, given: Mapping[str, Arm] | None, path: Path
) -> Mapping[str, Arm]:
    if slug not in hypothesis_names():
        return given or {}  # the check of references names it
    hypothesis = load_hypothesis(slug)
    known = {arm.name: arm for arm in hypothesis.arms_on(params.trainer)}
    case = params.own_case
    if given is None:
        needed, training = hypothesis.precondition, {**vars(params.training), **case.training}
        # without its precondition only arms that swap stages are evidence
        lacking = needed is not None and not training[needed.training]
        return {
            name: arm_of(arm, params)
            for name, arm in known.items()
            if _applies(arm, params) and not (lacking and arm.settings)
        }
    arms = {}
    for name, arm in given.items():
        own = arm == Arm()
        if own and name not in known:
            raise InputError(
                f"{path}: key 'hypotheses.{slug}.arms.{name}' changes nothing, and the cause has no "
                f"such arm; say what it changes in the case, or name an arm: {hint(name, known)}"
            )
        arms[name] = arm_of(known[name], params) if own else arm
    return arms


def _applies(arm: Intervention, params: Params) -> bool:
    """Whether the study's environment has what the arm changes."""
    weights = params.environments[params.environment].weights
    changed = set(arm.rollouts.get("weights", ()))
    return arm.environment != params.environment and changed <= set(weights)


def arm_of(arm: Intervention, params: Params) -> Arm:
    """Return the intervention as params.yaml would say it of this case; where stages cannot be swapped, only its settings are left."""
    case = params.own_case
    healthy = {
        "training": vars(params.training),
        "rollouts": vars(params.environments[params.environment]),
        "options": params.options,
    }
    swap = () if arm.settings and params.trainer != "own" else arm.swap
    changed: dict[str, Any] = {
        kind: {
            name: value_of(
                value, getattr(case, kind).get(name, control.get(name)), control.get(name)
            )
            for name, value in getattr(arm, kind).items()
        }
        for kind, control in healthy.items()
    }
    return Arm(
        environment=arm.environment, with_=arm.combined, swap=swap, faults=arm.faults, **changed
    )


def value_of(value: Any, case: Any, control: Any) -> Any:
    """Return an intervention's value of one setting. case, control: what these have; None where they have none."""
    if not isinstance(value, Times):
        return value
    if case is None:
        return value.otherwise
    factor = value.times
    if not case:
        case, factor = control, factor if value.of_zero is None else value.of_zero
    product = float(f"{case * factor:.{_DIGITS}g}")
    return round(product) if isinstance(case, int) else product


# --- an arm's runs


def arms(params: Params) -> list[Run]:
    """Return, without seeds and sorted, a run of the case, of the controls, and of every arm: the case with a part mended, and the control with it alone."""
    main, trainer = params.environment, load_trainer(params.trainer)
    name = "control"
    control = Run(
        arm=name,
        design=name,
        hypothesis="",
        environment=main,
        seed=0,
        trainer=params.trainer,
        faults=(),
        rollouts={},
        options=params.options,
        training=params.training,
        trained_as=name,
    )
    case = replace(_changed(control, params.own_case), arm="case", design="case")
    pairs = [
        _of_arm(params, arm, replace(case, arm=name, hypothesis=slug), control)
        for slug, own in sorted(params.arms.items())
        for name, arm in sorted(own.items())
        if not _missing(params, arm)
    ]
    tested = [arm for pair in pairs for arm in pair]
    tested += [
        arm for arm in _unnamed(params, case, control) if _means_something(arm, case, params)
    ]
    repairs = [arm for arm in tested if arm.design == "repair"]
    others = sorted({arm.environment for arm in repairs} - {main})
    controls = [replace(control, arm=f"{name}-control", environment=name) for name in others]
    if rewards_at_random := trainer.random_reward(params.options, told(params.command)):
        faults, options = rewards_at_random
        arm = replace(control, arm="random-reward", design="random_reward")
        controls.append(replace(arm, faults=faults, options=options))
    return [
        case,
        control,
        *controls,
        *repairs,
        *(arm for arm in tested if arm.design == "alone"),
    ]


def _changed(run: Run, changes: Arm) -> Run:
    given = stages_of(changes)
    left = (fault for fault in run.faults if stage_broken(fault) not in given)
    return replace(
        run,
        faults=(*left, *changes.defects),
        rollouts={**run.rollouts, **changes.rollouts},
        options={**run.options, **changes.options},
        training=replace(run.training, **changes.training),
    )


def _of_arm(params: Params, arm: Arm, case: Run, control: Run) -> Iterator[Run]:
    """Yield the case with the arm's changes and, where it departs there, the control with that part of the case."""
    changes = _whole(params, arm)
    environment = changes.environment or params.environment
    elsewhere = environment != params.environment
    # the case's rollouts are settings of its own environment
    mended = _changed(replace(case, rollouts={}) if elsewhere else case, changes)
    # what the environment has anyway changes nothing
    usual = vars(params.environments[environment])
    rollouts = {key: v for key, v in mended.rollouts.items() if v != usual[key]}
    # vLLM's server is asked after each update whatever an option says
    watching = load_trainer(params.trainer).watching if params.sampler == "vllm" else frozenset()
    options = {key: v for key, v in mended.options.items() if key not in watching}
    repair = replace(mended, design="repair", environment=environment)
    yield replace(repair, rollouts=rollouts, options=options)
    own, right, changed = _parts(case), _parts(control), set(_parts_of(changes))
    departing = {p: v for p, v in own.items() if p in changed and v != right.get(p)}
    if not elsewhere and departing:
        alone = _of_parts(control, {**right, **departing})
        name = f"{case.arm}-alone"
        yield replace(alone, arm=name, design="alone", hypothesis=case.hypothesis)


def interventions(params: Params) -> dict[str, Arm]:
    """Return every hypothesis' arms by name, as params.yaml has them."""
    return {name: arm for arms in params.arms.values() for name, arm in arms.items()}


def _whole(params: Params, arm: Arm) -> Arm:
    """Return what the arms change that it is `with`, and after them the arm itself."""
    known = interventions(params)
    before = (_whole(params, known[name]) for name in arm.with_)
    return functools.reduce(_after, [*before, replace(arm, with_=())])


def _after(first: Arm, second: Arm) -> Arm:
    """Return what both change; where both say something, the second one counts."""
    return Arm(
        environment=second.environment or first.environment,
        swap=tuple(dict.fromkeys([*first.swap, *second.swap])),
        faults=tuple(dict.fromkeys([*first.faults, *second.faults])),
        rollouts={**first.rollouts, **second.rollouts},
        options={**first.options, **second.options},
        training={**first.training, **second.training},
    )


def unmapped(params: Params) -> dict[str, str]:
    """By slug of hypothesis: what the study's trainer has no counterpart for, of arms that are not run."""
    reasons = {}
    for slug, own in sorted(params.arms.items()):
        missing = [
            f"{name}: {', '.join(parts)}"
            for name, arm in sorted(own.items())
            if (parts := _missing(params, arm))
        ]
        if missing:
            reasons[slug] = f"trainer {params.trainer} has no counterpart for {'; '.join(missing)}"
    return reasons


def _missing(params: Params, arm: Arm) -> list[str]:
    changes = _whole(params, arm)
    options = {**params.options, **params.own_case.options, **changes.options}
    stages = dict.fromkeys(stages_of(changes))
    return load_trainer(params.trainer).missing(stages, changes.training, options)


# --- what no hypothesis is about


# a stage, or a setting, and the block that it stands in; of a stage the block is empty
Part = tuple[str, str]


def stage_broken(fault: str) -> str:
    """By a planted fault, or by a user's own reward function."""
    return "score" if ":" in fault else stage_of(fault)


def stages_of(changes: Arm) -> list[str]:
    """Return the stages that are given another implementation: a right one, or a broken one."""
    return [*changes.swap, *map(stage_broken, changes.defects)]


def _parts(run: Run) -> dict[Part, Any]:
    """Return the faults of a run by their stages, and its settings."""
    blocks = {name: getattr(run, name) for name in BLOCKS} | {"training": vars(run.training)}
    stages = {("", stage_broken(fault)): fault for fault in run.faults}
    return stages | {(block, name): v for block in BLOCKS for name, v in blocks[block].items()}


def _of_parts(run: Run, parts: Mapping[Part, Any]) -> Run:
    """Return the run with these faults and settings, and no others."""
    own: dict[str, dict[str, Any]] = {block: {} for block in ("", *BLOCKS)}
    for (block, name), value in parts.items():
        own[block][name] = value
    training, faults = TrainingSettings(**own["training"]), tuple(own[""].values())
    rollouts, options = own["rollouts"], own["options"]
    return replace(run, faults=faults, training=training, rollouts=rollouts, options=options)


def _parts_of(changes: Arm) -> Iterator[Part]:
    """Yield the stages that an arm mends, and the settings that it changes."""
    yield from (("", stage) for stage in changes.swap)
    yield from ((block, name) for block in BLOCKS for name in getattr(changes, block))


def _unnamed(params: Params, case: Run, control: Run) -> Iterator[Run]:
    """Yield of each stage and setting that the case departs in and no hypothesis changes: mended, and alone."""
    if not any(params.arms.values()) or not params.unnamed:
        return
    # what arms of causes change about the case
    covered = {
        part
        for slug, arms in params.arms.items()
        if load_hypothesis(slug).kind == "cause"
        for arm in arms.values()
        if _whole(params, arm).environment in ("", params.environment) and not _missing(params, arm)
        for part in _parts_of(_whole(params, arm))
    }
    own, right = _parts(case), _parts(control)
    # rollouts have the environment's settings where a run says nothing
    environment = vars(params.environments[params.environment])
    usual = right | {("rollouts", name): value for name, value in environment.items()}
    # options that only watch change nothing
    watching = load_trainer(params.trainer).watching
    for part, value in own.items():
        block, name = part
        if name not in watching and value != usual.get(part) and part not in covered:
            slug = unnamed_slug(name, block)
            mended, alone = _with_part(case, part, right), _with_part(control, part, own)
            yield replace(mended, arm=slug, design="repair", hypothesis=slug)
            yield replace(alone, arm=f"{slug}-alone", design="alone", hypothesis=slug)


def _with_part(run: Run, part: Part, other: Mapping[Part, Any]) -> Run:
    kept = {each: value for each, value in _parts(run).items() if each != part}
    return _of_parts(run, kept | ({part: other[part]} if part in other else {}))


def _means_something(arm: Run, case: Run, params: Params) -> bool:
    """Whether an arm that nobody asked for can be run: with settings that go together, and no larger budget."""
    try:
        check_training(arm, params.launch.processes)
        check_budget(arm, case)
    except Wrong:
        return False
    return True


# --- seeds


def hypotheses_of(params: Params, runs: Iterable[Run]) -> list[str]:
    """Return the slugs of the study's hypotheses, and of what none of them names."""
    return sorted({*params.arms, *(run.hypothesis for run in runs if run.hypothesis)})


def seeds_of(params: Params, design: str) -> list[int]:
    """Return the seeds that a fixed design has for arms of this one: params.yaml has a list for all, or one for each."""
    seeds = params.seeds
    if isinstance(seeds, SeedsByDesign):
        return list(getattr(seeds, design) or seeds.others)
    return list(seeds)


def _seeds(params: Params, arm: Run) -> Sequence[int]:
    """All that runs of this arm may have."""
    if params.design == "fixed":
        return seeds_of(params, arm.design)
    # parameters are checked without SciPy where nothing asks for it
    from rlvr_debug.verdicts.looks import most_seeds

    return [params.first_seed + n for n in most_seeds(arm, params.environment)]


def runs(params: Params) -> Iterator[Run]:
    """Yield every run of the study, of a sequential one all that its looks may choose; arms with equal settings share their runs."""
    every_arm = arms(params)
    alike: dict[str, list[Run]] = {}
    for arm in every_arm:
        settings = [arm.environment, arm.faults, arm.rollouts, arm.options, vars(arm.training)]
        alike.setdefault(json.dumps(settings, sort_keys=True), []).append(arm)
    shared = {arm.arm: same for same in alike.values() for arm in same}
    for arm in every_arm:
        same = shared[arm.arm]
        for seed in dict.fromkeys(s for other in same for s in _seeds(params, other)):
            yield replace(arm, seed=seed, trained_as=same[0].arm)


def trained_runs(params: Params) -> list[Run]:
    """Return the runs that are trained: one of all with equal settings."""
    return [run for run in runs(params) if run.arm == run.trained_as]
