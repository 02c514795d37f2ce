"""params.yaml: reading, overlays, checks.

One schema (workflow/schemas/params.schema.yaml) holds every key with its description and default.
"""

from __future__ import annotations

import copy
import difflib
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from rlvr_debug.arms import HEALTHY, Arm, arms, faults_of, runs, stage_broken, without
from rlvr_debug.devices import positions
from rlvr_debug.errors import InputError
from rlvr_debug.faults import fault_names
from rlvr_debug.grpo.settings import STAGES
from rlvr_debug.hypotheses import hypothesis_names
from rlvr_debug.models.architectures import config_of
from rlvr_debug.models.places import base_model, base_model_of
from rlvr_debug.serving.vllm import RANKS, why_not_reloaded
from rlvr_debug.trainers import trl_config
from rlvr_debug.venvs import venv_names

__all__ = ["ROOT", "load_params", "merge", "parse_params"]

_KEPT_NAMES = ("case", "control", "random-reward")
Params = dict[str, Any]


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
        _check_removals(params, over, "", overlay)
        params = merge(params, over)
        _check_schema(params, overlay)
    _check_references(params, overlay or path)
    return params


def _read(path: Path) -> Params:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}, expected parameters in YAML") from None
    except ValueError as error:
        raise InputError(f"{path}: expected YAML, found: {error}") from None
    return parse_params(text, str(path))


def parse_params(text: str, place: str) -> Params:
    """The keys and values of a params.yaml as they stand there, not checked against the schema.

    place: the file, as errors name it.
    """
    try:
        value = _string_keys(yaml.load(text, _Loader))
    except RecursionError:
        raise InputError(f"{place}: expected YAML, found values nested too deep") from None
    except (yaml.YAMLError, ValueError) as error:  # a value such as 2024-13-45 is a ValueError
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise InputError(f"{place}{line}: expected YAML, found: {problem}") from None
    if not isinstance(value, dict):
        raise InputError(f"{place}: expected keys and values, found {type(value).__name__}")
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


def _check_removals(base: Params, over: Params, above: str, path: Path) -> None:
    """A `~` for a key that is not there removes nothing, such as a misspelt one."""
    for key, value in over.items():
        full = f"{above}{key}"
        if value is None and key not in base:
            raise InputError(f"{path}: key '{full}' is not there to remove: {_hint(key, base)}")
        if isinstance(value, dict):
            below = base.get(key)
            _check_removals(below if isinstance(below, dict) else {}, value, f"{full}.", path)


def _is_integer(_: Any, value: Any) -> bool:
    return type(value) is int


def _is_number(_: Any, value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _whole_pattern(
    _: Any, pattern: str, value: Any, __: Any
) -> Iterator[jsonschema.ValidationError]:
    if isinstance(value, str) and not re.fullmatch(pattern, value):
        yield jsonschema.ValidationError(f"expected a match of {pattern}")


# JSON Schema takes 3.0 for an integer and knows neither infinity nor NaN, which YAML can write; to
# Python `$` is also the place before a line break at the end
_Validator: Any = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator,
    {"pattern": _whole_pattern},
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine_many(
        {"integer": _is_integer, "number": _is_number}
    ),
)


@functools.cache
def _schema() -> Any:
    # ten times as fast as SafeLoader, where PyYAML was built with it
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return _Validator(yaml.load(_SCHEMA.read_text(encoding="utf-8"), loader))


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
        return f"unknown key '{full}': {_hint(unknown, known)}"
    if "propertyNames" in error.schema_path:
        full = ".".join([*map(str, error.path), error.instance])
        return f"key '{full}' is no name for it, expected a match of {error.validator_value}"
    if error.validator == "required":
        missing = next(key for key in error.validator_value if key not in error.instance)
        return f"key '{'.'.join([*map(str, error.path), missing])}' is missing"
    expectations: Mapping[str, Callable[[], str]] = {
        "type": lambda: f"expected {_either(error.validator_value)}",
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


def _either(types: str | list[str]) -> str:
    return types if isinstance(types, str) else " or ".join(types)


def _short(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"


def _known(value: str, known: Iterable[str], key: str, what: str, path: Path) -> None:
    names = list(known)
    if value in names:
        return
    raise InputError(
        f"{path}: key '{key}' names the {what} '{value}', which does not exist: {_hint(value, names)}"
    )


def _hint(value: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"expected one of {', '.join(names) or 'none'}"


def _check_references(params: Params, path: Path) -> None:
    """What a schema cannot say: names that must exist, and combinations that mean nothing."""
    _check_base_models(params, path)
    _known(params["case"], [HEALTHY, *params["cases"]], "case", "case", path)
    for name, case in params["cases"].items():
        key = f"cases.{name}"
        if name == HEALTHY:
            raise InputError(f"{path}: key '{key}' is taken: the healthy case has no faults")
        for fault in case["faults"]:
            _known(fault, fault_names(), f"{key}.faults", "fault", path)
        faults = [*case["faults"], *([case["reward"]] if "reward" in case else [])]
        stages = [stage_broken(fault) for fault in faults]
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
            _check_changes(params, f"{key}.arms.{name}", arm, path)
    for name, settings in params["data"].items():
        _check_data(name, settings, path)
    for name, settings in params["environments"].items():
        if not sum(settings["weights"].values()):
            raise InputError(f"{path}: key 'environments.{name}.weights' sums to 0, expected more")
    _check_trainer(params, path)
    if params["sampler"] == "vllm":
        _check_vllm(params, path)
    _check_launch(params, path)
    case, *others = arms(params)
    for arm in [case, *others]:
        _check_training(arm, path)
        _check_processes(params["launch"], arm, path)
    for arm in others:
        _check_budget(arm, case, path)


_SOURCE_OF = {
    "path": "jsonl",
    "heldout_path": "jsonl",
    "datasets": "hub",
    "heldout_datasets": "hub",
}


def _check_data(name: str, settings: Mapping[str, Any], path: Path) -> None:
    """Rows come from where the source says, and some are left to train on."""
    source, key = settings["source"], f"data.{name}"
    needed = {"jsonl": "path", "hub": "datasets"}.get(source)
    if needed and needed not in settings:
        raise InputError(f"{path}: key '{key}.{needed}' is missing, expected with source {source}")
    for other, its in _SOURCE_OF.items():
        if other in settings and its != source:
            raise InputError(
                f"{path}: key '{key}.{other}' is given, expected none with source {source}"
            )
    if source == "synthetic":
        if settings["heldout"] >= settings["rows"]:
            raise InputError(
                f"{path}: key '{key}.heldout' is {settings['heldout']}, expected less than all "
                f"{settings['rows']} rows"
            )
        for shares in {"hops", "steps"} & set(settings):
            if not sum(settings[shares].values()):
                raise InputError(f"{path}: key '{key}.{shares}' sums to 0, expected more")


def _check_changes(params: Params, key: str, arm: Mapping[str, Any], path: Path) -> None:
    """An arm that is told to change nothing tests nothing."""
    if not any(arm.values()):
        raise InputError(f"{path}: key '{key}' changes nothing, expected what it does to the case")


def _check_trainer(params: Params, path: Path) -> None:
    """The case is one that the study's trainer can run, and a program is named where one is needed."""
    trainer, name = params["trainer"], params["case"]
    case = params["cases"].get(name, {"faults": []})
    if trainer == "command" and "program" not in params["command"]:
        raise InputError(f"{path}: key 'command.program' is missing, expected with trainer command")
    if trainer != "command":
        for key in ("program", "environment", "random_reward"):
            if key in params["command"]:
                raise InputError(
                    f"{path}: key 'command.{key}' is given, expected none with trainer {trainer}"
                )
    if "environment" in params["command"]:
        _known(
            params["command"]["environment"],
            venv_names(),
            "command.environment",
            "environment",
            path,
        )
    if trainer != "trl" and "reward" in case:
        raise InputError(
            f"{path}: key 'cases.{name}.reward' is given, expected none with trainer {trainer}"
        )
    if trainer == "own":
        for key, options in _all_options(params):
            if options:
                raise InputError(f"{path}: key '{key}' is given, expected none with trainer own")
        return
    if trainer == "trl":
        for key, options in _all_options(params):
            for option in options:
                if option in trl_config.TAKEN:
                    raise InputError(
                        f"{path}: key '{key}.{option}' follows from other settings, expected it not to be given "
                        "(docs/trainers.md)"
                    )
    stages = map(stage_broken, faults_of(case))
    if missing := without(trainer, stages, {**params["training"], **case.get("training", {})}):
        raise InputError(
            f"{path}: key 'cases.{name}' asks for {', '.join(missing)}, which trainer {trainer} "
            "cannot be given"
        )


def _check_base_models(params: Params, path: Path) -> None:
    """Folders are there; of a model on the hub only the name is checked, for it may not be fetched yet."""
    given = {"base_model": params["base_model"]}
    given |= {f"base_models.{name}": text for name, text in params["base_models"].items()}
    for key, text in given.items():
        try:
            model = base_model(text)
        except InputError as error:
            raise InputError(f"{path}: key '{key}': {error}") from None
        if model.revision:
            continue
        if missing := [file.name for file in model.beside(ROOT) if not file.is_file()]:
            raise InputError(
                f"{path}: key '{key}' is {_short(text)}, expected a folder with {missing[0]}, or "
                "owner/name@revision on the hub"
            )


def _check_vllm(params: Params, path: Path) -> None:
    """vLLM can hold the base models as it is told to, and a reply in its context."""
    told = params["vllm"]
    length, parts = told["max_model_len"], told["tensor_parallel_size"]
    for run in runs(params):
        key = f"environments.{run.environment}.max_new_tokens"
        reply = params["environments"][run.environment]["max_new_tokens"]
        if 0 < length <= reply:
            raise InputError(
                f"{path}: key 'vllm.max_model_len' is {length}, expected more than {key}, {reply}"
            )
    for environment in sorted({run.environment for run in runs(params)}):
        config = config_of(base_model_of(params, environment), ROOT)
        if config is None:
            continue  # neither fetched nor known; the server will say
        most, heads = config["max_position_embeddings"], config["num_attention_heads"]
        if length > most:
            raise InputError(
                f"{path}: key 'vllm.max_model_len' is {length}, expected at most the base model's {most}"
            )
        if heads % parts:
            raise InputError(
                f"{path}: key 'vllm.tensor_parallel_size' is {parts}, expected a divisor of the base "
                f"model's {heads} attention heads"
            )
    if params["trainer"] != "own":
        return
    for arm in arms(params):
        lora_r, config = (
            arm.training["lora_r"],
            config_of(base_model_of(params, arm.environment), ROOT),
        )
        found = f"{path}: key 'training.lora_r' is {lora_r} in arm '{arm.name}', expected"
        if not lora_r and told["shared_by"] != "run":
            raise InputError(
                f"{found} more with vllm.shared_by {told['shared_by']}: one server has one model"
            )
        if not lora_r and (why := why_not_reloaded(config or {}, told)):
            raise InputError(f"{found} more: {why}")
        if lora_r > RANKS[-1]:
            raise InputError(f"{found} at most {RANKS[-1]}, as vLLM has it")


def _check_launch(params: Params, path: Path) -> None:
    """Several processes are started by something, and no GPU is given to two."""
    launch, server = params["launch"], params["vllm"]
    config, taken = launch["config"], positions(launch["devices"])
    if params["trainer"] != "own" and (config or taken):
        raise InputError(
            f"{path}: key 'launch' is given, expected none with trainer {params['trainer']}"
        )
    if not config and (launch["processes"] > 1 or taken):
        raise InputError(
            f"{path}: key 'launch.config' is missing, expected a config of accelerate with "
            "launch.processes and launch.devices"
        )
    if config and not (ROOT / config).is_file():
        raise InputError(f"{path}: key 'launch.config' is {_short(config)}, expected a file")
    if taken and len(set(taken)) != launch["processes"]:
        raise InputError(
            f"{path}: key 'launch.devices' is {_short(launch['devices'])}, expected "
            f"{launch['processes']}, one for each of launch.processes"
        )
    both = set(taken) & set(positions(server["devices"]))
    if both and params["sampler"] == "vllm":
        raise InputError(
            f"{path}: key 'vllm.devices' has {min(both)}, which launch.devices has too, expected others"
        )


def _check_processes(launch: Mapping[str, Any], arm: Arm, path: Path) -> None:
    """Every process has as many sequences as any other."""
    batch = arm.training["prompts_per_step"] * arm.training["group_size"]
    if batch % launch["processes"]:
        raise InputError(
            f"{path}: key 'launch.processes' is {launch['processes']}, expected a divisor of a "
            f"batch's {batch} rollouts in arm '{arm.name}'"
        )


def _all_options(params: Params) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Wherever options are given, by key."""
    yield "options", params["options"]
    for name, case in params["cases"].items():
        yield f"cases.{name}.options", case.get("options", {})
    for slug, hypothesis in params["hypotheses"].items():
        for name, arm in hypothesis["arms"].items():
            yield f"hypotheses.{slug}.arms.{name}.options", arm.get("options", {})


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
    # a repair of the adapter alone has no counterpart in a control without one
    usual = _schema().schema["$defs"]["training"]["properties"]["lora_alpha"]["default"]
    if not training["lora_r"] and training["lora_alpha"] != usual and arm.design != "alone":
        raise InputError(
            f"{path}: key 'training.lora_alpha' is {training['lora_alpha']} in arm '{arm.name}', "
            f"expected {usual} with lora_r 0: full fine-tuning has no adapter"
        )
    if training["kl_place"] == "reward":
        for key, right in _FOR_KL_IN_REWARD.items():
            if training[key] != right:
                raise InputError(
                    f"{path}: key 'training.{key}' is {_short(training[key])} in arm '{arm.name}', "
                    f"expected {right} with kl_place reward"
                )
