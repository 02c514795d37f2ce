"""params.yaml: reading, overlays, checks, and what each run of a study is given.

One schema (workflow/schemas/params.schema.yaml) holds every key with its description and default.
"""

from __future__ import annotations

import copy
import difflib
import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from rlvr_debug.errors import InputError
from rlvr_debug.faults import fault_names, stage_of
from rlvr_debug.grpo.settings import STAGES, TrainingSettings
from rlvr_debug.hypotheses import hypothesis_names

__all__ = [
    "DESIGNS",
    "HEALTHY",
    "ROOT",
    "Arm",
    "Run",
    "arms",
    "load_params",
    "merge",
    "read_runs",
    "runs",
]

HEALTHY = "healthy"
_KEPT_NAMES = ("case", "control", "random-reward")
Params = dict[str, Any]


# case: as it is; control: healthy; random_reward: the control with a reward that says nothing; repair: the
# case with one part as in the control; alone: the control with one part as in the case
DESIGNS = ("case", "control", "random_reward", "repair", "alone")


@dataclass(frozen=True)
class Arm:
    """One way to run. `hypothesis` is "" for the case and the controls.

    rollouts: what its training rollouts change about the environment's settings; evaluation never does.
    """

    name: str
    design: str
    hypothesis: str
    environment: str
    faults: tuple[str, ...]
    rollouts: Mapping[str, Any]
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
    faults: tuple[str, ...]
    rollouts: Mapping[str, Any]
    training: TrainingSettings
    trained_as: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Run:
        return Run(
            **{
                **value,
                "faults": tuple(value["faults"]),
                "training": TrainingSettings(**value["training"]),
            }
        )


ROOT = Path(__file__).resolve().parents[2]
_SCHEMA = ROOT / "workflow" / "schemas" / "params.schema.yaml"


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, but `1e-5` is a number and a repeated key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key.value, str):
                raise yaml.MarkedYAMLError(
                    problem="a key of several values, expected a word", problem_mark=key.start_mark
                )
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key '{key.value}' stands twice, expected once",
                    problem_mark=key.start_mark,
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = copy.deepcopy(yaml.SafeLoader.yaml_implicit_resolvers)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def load_params(path: Path, overlay: Path | None = None) -> Params:
    """Read params.yaml, merge the overlay over it, check both and the result."""
    params = _read(path)
    _check_schema(params, path)
    if overlay is not None:
        over = _read(overlay)
        if not isinstance(over.get("study"), str):
            raise InputError(f"{overlay}: key 'study' is missing, expected the name of the study")
        if over["study"] == params["study"]:
            raise InputError(
                f"{overlay}: key 'study' is '{over['study']}' as in {path}, expected another name"
            )
        params = merge(params, over)
        _check_schema(params, overlay)
    _check_references(params, overlay or path)
    return params


def _read(path: Path) -> Params:
    try:
        value = _string_keys(yaml.load(path.read_text(encoding="utf-8"), _Loader))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}, expected parameters in YAML") from None
    except RecursionError:
        raise InputError(f"{path}: expected YAML, found values nested too deep") from None
    except (yaml.YAMLError, ValueError) as error:  # a value such as 2024-13-45 is a ValueError
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise InputError(f"{path}{line}: expected YAML, found: {problem}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected keys and values, found {type(value).__name__}")
    return value


def _string_keys(value: Any) -> Any:
    """YAML reads `{2: 0.7}` with a number for a key; JSON and the schema know strings only."""
    if isinstance(value, dict):
        return {str(key): _string_keys(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_string_keys(item) for item in value]
    return value


def merge(base: Any, over: Any) -> Any:
    """`over` on `base`: mappings key by key, anything else replaced. `~` removes a key."""
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return over
    merged = {key: value for key, value in base.items() if key not in over}
    merged |= {
        key: merge(base.get(key, {} if isinstance(value, dict) else None), value)
        for key, value in over.items()
        if value is not None
    }
    return {key: merged[key] for key in [*base, *over] if key in merged}


def _is_integer(_: Any, value: Any) -> bool:
    return type(value) is int


def _is_number(_: Any, value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


# JSON Schema takes 3.0 for an integer and knows neither infinity nor NaN, which YAML can write
_Validator: Any = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine_many(
        {"integer": _is_integer, "number": _is_number}
    ),
)


@functools.cache
def _schema() -> Any:
    return _Validator(yaml.safe_load(_SCHEMA.read_text(encoding="utf-8")))


def _check_schema(params: Params, path: Path) -> None:
    # an unknown key first: a misspelt one is missing too, and only its own error has the hint
    errors = sorted(
        _schema().iter_errors(params),
        key=lambda e: (list(map(str, e.path)), e.validator != "additionalProperties", e.message),
    )
    if errors:
        raise InputError(f"{path}: {_explain(errors[0])}")


def _explain(error: Any) -> str:
    place = ".".join(map(str, error.path)) or "the top level"
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = list(error.schema.get("properties", {}))
        unknown = next(key for key in error.instance if key not in known)
        full = ".".join([*map(str, error.path), unknown])
        near = difflib.get_close_matches(unknown, known, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"expected one of {', '.join(known)}"
        return f"unknown key '{full}': {hint}"
    if error.validator == "required":
        missing = next(key for key in error.validator_value if key not in error.instance)
        return f"key '{'.'.join([*map(str, error.path), missing])}' is missing"
    expectations: Mapping[str, Callable[[], str]] = {
        "type": lambda: f"expected {error.validator_value}",
        "enum": lambda: f"expected one of {', '.join(map(str, error.validator_value))}",
        "minimum": lambda: f"expected at least {error.validator_value}",
        "maximum": lambda: f"expected at most {error.validator_value}",
        "exclusiveMinimum": lambda: f"expected more than {error.validator_value}",
        "exclusiveMaximum": lambda: f"expected less than {error.validator_value}",
        "minItems": lambda: f"expected at least {error.validator_value} item",
        "minProperties": lambda: f"expected at least {error.validator_value} key",
        "uniqueItems": lambda: "expected each item once",
        "pattern": lambda: f"expected a match of {error.validator_value}",
    }
    expected = expectations.get(str(error.validator), lambda: str(error.message))()
    return f"key '{place}' is {_short(error.instance)}, {expected}"


def _short(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"


def _known(value: str, known: Iterable[str], key: str, what: str, path: Path) -> None:
    names = list(known)
    if value in names:
        return
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"expected one of {', '.join(names)}"
    raise InputError(
        f"{path}: key '{key}' names the {what} '{value}', which does not exist: {hint}"
    )


def _check_references(params: Params, path: Path) -> None:
    """What a schema cannot say: names that must exist, and combinations that mean nothing."""
    _known(params["case"], [HEALTHY, *params["cases"]], "case", "case", path)
    for name, case in params["cases"].items():
        key = f"cases.{name}"
        if name == HEALTHY:
            raise InputError(f"{path}: key '{key}' is taken: the healthy case has no faults")
        for fault in case["faults"]:
            _known(fault, fault_names(), f"{key}.faults", "fault", path)
        stages = [stage_of(fault) for fault in case["faults"]]
        if len(set(stages)) < len(stages):
            raise InputError(f"{path}: key '{key}.faults' breaks a stage twice, expected once")
        _check_rollouts(case, key, params["environments"][params["environment"]], path)
    taken: dict[str, str] = {}
    for slug, hypothesis in params["hypotheses"].items():
        key = f"hypotheses.{slug}"
        _known(slug, hypothesis_names(), key, "hypothesis", path)
        for name, arm in hypothesis["arms"].items():
            if name in _KEPT_NAMES or name.endswith(("-control", "-alone")):
                raise InputError(f"{path}: key '{key}.arms.{name}' is a name kept for other arms")
            if name in taken:
                raise InputError(
                    f"{path}: key '{key}.arms.{name}' stands in {taken[name]} too, expected once"
                )
            taken[name] = key
            for stage in arm.get("swap", []):
                _known(stage, STAGES, f"{key}.arms.{name}.swap", "stage", path)
            _check_with(params, f"{key}.arms.{name}.with", arm, (name,), path)
            main = arm.get("environment", params["environment"])
            _check_rollouts(arm, f"{key}.arms.{name}", params["environments"][main], path)
    for name, settings in params["data"].items():
        needed = {"synthetic": "rows", "jsonl": "path", "hub": "datasets"}[settings["source"]]
        if needed not in settings:
            raise InputError(
                f"{path}: key 'data.{name}.{needed}' is missing, expected with source {settings['source']}"
            )
    for name, settings in params["environments"].items():
        if not sum(settings["weights"].values()):
            raise InputError(f"{path}: key 'environments.{name}.weights' sums to 0, expected more")
    case, *others = arms(params)
    for arm in [case, *others]:
        _check_training(arm, path)
    for arm in others:
        _check_budget(arm, case, path)


def _check_with(
    params: Params, key: str, arm: Mapping[str, Any], seen: tuple[str, ...], path: Path
) -> None:
    """Arms that are combined exist, and none is combined with itself."""
    known = {name: each for h in params["hypotheses"].values() for name, each in h["arms"].items()}
    for name in arm.get("with", []):
        _known(name, known, key, "arm", path)
        if name in seen:
            raise InputError(f"{path}: key '{key}' leads back to '{name}', expected other arms")
        _check_with(params, key, known[name], (*seen, name), path)


def _check_rollouts(
    arm: Mapping[str, Any], key: str, settings: Mapping[str, Any], path: Path
) -> None:
    """An arm changes settings that its environment has."""
    for name, value in arm.get("rollouts", {}).items():
        _known(name, settings, f"{key}.rollouts", "setting", path)
        if isinstance(value, dict):
            for part in value:
                _known(part, settings[name], f"{key}.rollouts.{name}", "reward part", path)
            if not sum(value.values()):
                raise InputError(f"{path}: key '{key}.rollouts.{name}' sums to 0, expected more")


def _check_budget(arm: Arm, case: Arm, path: Path) -> None:
    """No arm wins because it samples or trains more than the case."""

    def budget(training: Mapping[str, Any]) -> dict[str, int]:
        return {
            "steps": training["steps"],
            "rollouts per step": training["prompts_per_step"] * training["group_size"],
            "num_iterations": training["num_iterations"],
        }

    allowed = budget(case.training)
    for name, value in budget(arm.training).items():
        if arm.hypothesis and value > allowed[name]:
            raise InputError(
                f"{path}: arm '{arm.name}' of {arm.hypothesis} has {value} {name}, expected at most "
                f"the case's {allowed[name]}: an arm with a larger budget shows nothing"
            )


# the KL comes off the sum of the parts, and the loss has no term of it that a ratio could weight
_FOR_KL_IN_REWARD = {
    "multi_objective_aggregation": "sum_then_normalize",
    "use_bias_correction_kl": False,
}


def _check_training(arm: Arm, path: Path) -> None:
    training = arm.training
    batch = training["prompts_per_step"] * training["group_size"]
    parts = training["gradient_accumulation_steps"]
    if parts > batch:
        raise InputError(
            f"{path}: key 'training.gradient_accumulation_steps' is {parts} in arm '{arm.name}', "
            f"expected at most a batch's {batch} rollouts"
        )
    if training["kl_place"] == "reward":
        for key, right in _FOR_KL_IN_REWARD.items():
            if training[key] != right:
                raise InputError(
                    f"{path}: key 'training.{key}' is {_short(training[key])} in arm '{arm.name}', "
                    f"expected {right} with kl_place reward"
                )


@dataclass(frozen=True)
class _Changes:
    """What an intervention changes about the case."""

    environment: str | None
    swap: tuple[str, ...]
    rollouts: Mapping[str, Any]
    training: Mapping[str, Any]


def _changes(params: Params, arm: Mapping[str, Any]) -> _Changes:
    """Of an arm's own and, before them, of the arms that it is `with`."""
    known = {name: each for h in params["hypotheses"].values() for name, each in h["arms"].items()}
    own = _Changes(
        arm.get("environment"),
        tuple(arm.get("swap", ())),
        arm.get("rollouts", {}),
        arm.get("training", {}),
    )
    return functools.reduce(
        lambda a, b: _Changes(
            b.environment or a.environment,
            tuple(dict.fromkeys(a.swap + b.swap)),
            {**a.rollouts, **b.rollouts},
            {**a.training, **b.training},
        ),
        [*(_changes(params, known[name]) for name in arm.get("with", ())), own],
    )


def arms(params: Params) -> list[Arm]:
    """The case, the controls, and every hypothesis' interventions.

    The controls are a healthy one per environment in use and, in the case's, one with random rewards.
    An intervention is run both ways: the case with that part mended, and, where the case departs from
    the control in it, the control with that part alone as in the case. The first finds a cause that
    acts by itself, the second one that another defect hides.
    Sorted: the order of keys in params.yaml changes no table, so that it need not rerun one.
    """
    main, healthy = params["environment"], params["training"]
    case = params["cases"].get(params["case"], {"faults": []})
    faults, training = tuple(case["faults"]), {**healthy, **case.get("training", {})}
    rollouts = case.get("rollouts", {})

    repairs, alone = [], []
    for slug, hypothesis in sorted(params["hypotheses"].items()):
        for name, arm in sorted(hypothesis["arms"].items()):
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
                    tuple(fault for fault in faults if stage_of(fault) not in changed.swap),
                    {**mended, **changed.rollouts},
                    {**training, **changed.training},
                )
            )
            broken = tuple(fault for fault in faults if stage_of(fault) in changed.swap)
            departing = {
                key: training[key] for key in changed.training if training[key] != healthy[key]
            }
            seen = {key: rollouts[key] for key in changed.rollouts if key in rollouts}
            if environment == main and (broken or departing or seen):
                alone.append(
                    Arm(
                        f"{name}-alone", "alone", slug, main, broken, seen, {**healthy, **departing}
                    )
                )
    others = sorted({arm.environment for arm in repairs} - {main})
    controls = [
        Arm("control" if env == main else f"{env}-control", "control", "", env, (), {}, healthy)
        for env in [main, *others]
    ]
    controls.append(
        Arm("random-reward", "random_reward", "", main, ("random-reward",), {}, healthy)
    )
    return [Arm("case", "case", "", main, faults, rollouts, training), *controls, *repairs, *alone]


def runs(params: Params) -> Iterator[Run]:
    """Every run of the study, wholly resolved."""
    first: dict[str, str] = {}
    for arm in arms(params):
        told = [arm.environment, arm.faults, arm.rollouts, arm.training]
        trained_as = first.setdefault(json.dumps(told, sort_keys=True), arm.name)
        for seed in params["seeds"]:
            yield Run(
                arm=arm.name,
                design=arm.design,
                hypothesis=arm.hypothesis,
                environment=arm.environment,
                seed=seed,
                faults=arm.faults,
                rollouts=arm.rollouts,
                training=TrainingSettings(**arm.training),
                trained_as=trained_as,
            )


def read_runs(path: Path) -> list[Run]:
    """From a JSON list of what `Run.to_json` returns."""
    return [Run.from_json(run) for run in json.loads(path.read_text(encoding="utf-8"))]
