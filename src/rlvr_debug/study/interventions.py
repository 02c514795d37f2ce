"""A cause's interventions as arms of a study: what params.yaml leaves to the cause's folder is filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr_debug.causes import hypothesis_names, load_hypothesis
from rlvr_debug.causes.base import Intervention, Precondition, Times
from rlvr_debug.errors import InputError, hint
from rlvr_debug.study.model import Arm, Params, TestedHypothesis

ALL = "all"
_DIGITS = 12  # of a product, so that 3 times 4e-4 is 1.2e-3


def filled(params: Params, path: Path) -> Params:
    """Return the parameters with every arm spelled out.

    `hypotheses: all` stands for every cause, a hypothesis without `arms` for all of its own, and an arm `{}` for
    the cause's arm of that name. path: the file that an error names. Raises InputError for an arm `{}` that the
    cause does not have.
    """
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
    if given is None:
        lacking = _lacks(hypothesis.precondition, params)
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
                f"{path}: key 'hypotheses.{slug}.arms.{name}' changes nothing, expected what it does to the "
                f"case, or {{}} for an arm of the cause's own: {hint(name, known)}"
            )
        arms[name] = arm_of(known[name], params) if own else arm
    return arms


def _lacks(precondition: Precondition | None, params: Params) -> bool:
    """Whether the precondition is missing: then only arms that swap stages are evidence."""
    training = {**vars(params.training), **params.own_case.training}
    return precondition is not None and not training[precondition.training]


def _applies(arm: Intervention, params: Params) -> bool:
    """Whether the study's environment has what the arm changes."""
    weights = params.environments[params.environment].weights
    changed = set(arm.rollouts.get("weights", ()))
    return arm.environment != params.environment and changed <= set(weights)


def arm_of(arm: Intervention, params: Params) -> Arm:
    """Return the intervention as params.yaml would say it, with values for this study's case.

    A trainer that is not ours cannot swap stages: of an arm that changes settings too, only these are left.
    """
    case = params.own_case
    healthy = {
        "training": vars(params.training),
        "rollouts": vars(params.environments[params.environment]),
        "options": params.options,
    }
    swap = () if arm.settings and params.trainer != "own" else arm.swap
    changed = {
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
