"""From hypotheses to runs: what each arm changes about the case, and all that a training process is given.

A cause declares interventions (causes/__init__.py). In params.yaml an intervention is an Arm, with values for this study's
case; what comes of it is a Run: the case with the arm's changes, and the control with that part as in the case.
"""

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlvr_debug.blocks import told
from rlvr_debug.causes import load_hypothesis, stage_of
from rlvr_debug.causes.unnamed import BLOCKS, unnamed_slug
from rlvr_debug.errors import typed
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.study.model import Arm, Params, SeedsByDesign
from rlvr_debug.trainers import Run, load_trainer

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


# --- what an arm may not be


class Wrong(Exception):
    """What is wrong with a key. checks.check_references names the file."""

    @classmethod
    def value(cls, key: str, found: Any, expected: Any, arm: Run | None = None) -> "Wrong":
        """Of a key that has a value which means nothing. arm: the one that has it, where only one may."""
        place = f" in arm '{arm.arm}'" if arm else ""
        return cls(f"key '{key}' is {found}{place}, expected {expected}")


def check_budget(arm: Run, case: Run) -> None:
    """Raise Wrong where the arm would win because it samples or trains more than the case."""
    for name, value, allowed in (
        ("steps", arm.training.steps, case.training.steps),
        ("rollouts per step", arm.rollouts_per_step, case.rollouts_per_step),
        ("num_iterations", arm.training.num_iterations, case.training.num_iterations),
    ):
        if arm.hypothesis and value > allowed:
            raise Wrong(
                f"arm '{arm.arm}' of {arm.hypothesis} has {value} {name}, expected at most "
                f"the case's {allowed}: an arm with a larger budget shows nothing"
            )


# the KL comes off the sum of the parts, and the loss has no term of it that a ratio could weight
_FOR_KL_IN_REWARD = {
    "multi_objective_aggregation": "sum_then_normalize",
    "use_bias_correction_kl": False,
}


def check_training(arm: Run, processes: int) -> None:
    """Raise Wrong where settings of the arm mean nothing together."""
    training, batch = arm.training, arm.rollouts_per_step
    parts = training.gradient_accumulation_steps
    if parts > batch:
        most = f"at most a batch's {batch} rollouts"
        raise Wrong.value("training.gradient_accumulation_steps", parts, most, arm)
    # a repair of the adapter alone has no counterpart in a control without one
    no_adapter = not training.lora_r and arm.design != "alone"
    if no_adapter and training.lora_alpha != TrainingSettings.lora_alpha:
        right = f"{TrainingSettings.lora_alpha} with lora_r 0: full fine-tuning has no adapter"
        raise Wrong.value("training.lora_alpha", training.lora_alpha, right, arm)
    if training.kl_place == "reward":
        for key, needed in _FOR_KL_IN_REWARD.items():
            if (value := getattr(training, key)) != needed:
                right = f"{typed(needed)} with kl_place reward"
                raise Wrong.value(f"training.{key}", typed(value), right, arm)
    # every process has as many sequences as any other
    if batch % processes:
        raise Wrong(
            f"key 'launch.processes' is {processes}, expected a divisor of a batch's {batch} "
            f"rollouts in arm '{arm.arm}'"
        )


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
