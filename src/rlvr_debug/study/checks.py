"""What a schema cannot say of parameters: names that must exist, and combinations that mean nothing."""

from collections.abc import Iterable
from pathlib import Path

from rlvr_debug.blocks import told
from rlvr_debug.causes import hypothesis_names, variant_names
from rlvr_debug.causes.unnamed import UNNAMED
from rlvr_debug.checkout import ROOT, has_checkout
from rlvr_debug.data.prepare import KEYS_OF
from rlvr_debug.devices import positions
from rlvr_debug.environments.settings import OURS_ALONE, DataSettings, EnvironmentSettings
from rlvr_debug.errors import InputError, hint, short
from rlvr_debug.grpo.settings import STAGES
from rlvr_debug.models.architectures import architecture_of, config_of
from rlvr_debug.models.places import base_model
from rlvr_debug.serving.vllm import RANKS, why_not_reloaded
from rlvr_debug.study.arms import arms, interventions, runs, stages_of
from rlvr_debug.study.model import HEALTHY, Arm, Params
from rlvr_debug.study.wrong import Wrong, check_budget, check_training
from rlvr_debug.trainers import Demands, Trainer, load_trainer
from rlvr_debug.venvs import venv_names

_KEPT_NAMES = ("case", "control", "random-reward")


def check_references(params: Params, path: Path) -> None:
    """Raise InputError for a name that does not exist and for what means nothing. path: the file, for the error."""
    try:
        _check(params)
    except Wrong as wrong:
        raise InputError(f"{path}: {wrong}") from None


def _known(value: str, known: Iterable[str], key: str, what: str) -> None:
    names = list(known)
    if value not in names:
        raise Wrong(
            f"key '{key}' names the {what} '{value}', which does not exist: {hint(value, names)}"
        )


def _check(params: Params) -> None:
    _check_base_models(params)
    _known(params.case, [HEALTHY, *params.cases], "case", "case")
    if HEALTHY in params.cases:
        raise Wrong(f"key 'cases.{HEALTHY}' is taken: the healthy case has no faults")
    for key, block in _blocks(params).items():
        for fault in block.faults:
            _known(fault, variant_names(), f"{key}.faults", "fault")
        stages = stages_of(block)
        if len(set(stages)) < len(stages):
            raise Wrong(f"key '{key}.faults' has two faults of one stage, expected one")
        main = block.environment or params.environment
        _check_rollouts(block, key, params.environments[main])
    taken: dict[str, str] = {}
    for slug, own in params.arms.items():
        key = f"hypotheses.{slug}"
        _known(slug, hypothesis_names(), key, "hypothesis")
        for name, arm in own.items():
            place = f"{key}.arms.{name}"
            ends = name.endswith(("-control", "-alone"))
            if name in _KEPT_NAMES or ends or name.startswith(UNNAMED):
                raise Wrong(f"key '{place}' is a reserved name, expected another")
            if name in taken:
                raise Wrong(f"key '{place}' appears in {taken[name]} too, expected once")
            taken[name] = key
            for stage in arm.swap:
                _known(stage, STAGES, f"{place}.swap", "stage")
            _check_with(params, f"{place}.with", arm, (name,))
            if arm == Arm():
                raise Wrong(f"key '{place}' changes nothing, expected a change to the case")
    for name, data in params.data.items():
        _check_data(name, data)
    for name, settings in params.environments.items():
        if not sum(settings.weights.values()):
            raise Wrong(f"key 'environments.{name}.weights' sums to 0, expected more")
    if params.first_seed and params.design == "fixed":
        raise Wrong.value(
            "first_seed", params.first_seed, "0 with design fixed, which uses `seeds`"
        )
    _check_trainer(params)
    if params.sampler == "vllm":
        _check_vllm(params)
    if params.evaluation.verifiers_rows:
        _check_verifiers(params)
    _check_launch(params)
    case_run, *others = arms(params)
    for arm_run in (case_run, *others):
        check_training(arm_run, params.launch.processes)
        check_budget(arm_run, case_run)


def _check_data(name: str, settings: DataSettings) -> None:
    """Rows come from where the source says, and some are left to train on."""
    source, key = settings.source, f"data.{name}"
    for its, names in KEYS_OF.items():
        if its == source and not getattr(settings, names[0]):
            raise Wrong(f"key '{key}.{names[0]}' is missing, expected with source {source}")
        if its != source and (given := [each for each in names if getattr(settings, each)]):
            raise Wrong(f"key '{key}.{given[0]}' is given, expected none with source {source}")
    if source == "synthetic":
        if settings.heldout >= settings.rows:
            less = f"less than all {settings.rows} rows"
            raise Wrong.value(f"{key}.heldout", settings.heldout, less)
        for setting, shares in vars(settings).items():
            if isinstance(shares, dict) and not any(shares.values()):
                raise Wrong(f"key '{key}.{setting}' sums to 0, expected more")


def _check_trainer(params: Params) -> None:
    """The case is one that the study's trainer can run, and the study says what the trainer needs."""
    trainer, case = load_trainer(params.trainer), params.own_case
    command, blocks = told(params.command), _blocks(params)
    if given := _without_counterpart(params, trainer, case):
        raise Wrong(f"key '{given[0]}' is given, expected none with trainer {trainer.name}")
    options = {"options": params.options}
    options |= {f"{key}.options": block.options for key, block in blocks.items()}
    for key, option in ((key, option) for key, own in options.items() for option in own):
        if option in trainer.taken_options:
            raise Wrong(
                f"key '{key}.{option}' follows from other settings, expected it not to be given "
                "(docs/trainers.md)"
            )
    if wrong := trainer.refused(Demands(command, params.case, case.faults, options)):
        raise Wrong(wrong)
    if name := params.command.environment:
        _known(name, venv_names(), "command.environment", "environment")
    training = {**vars(params.training), **case.training}
    if missing := trainer.missing(stages_of(case), training, {**params.options, **case.options}):
        raise Wrong(
            f"key 'cases.{params.case}' asks for {', '.join(missing)}, which trainer "
            f"{trainer.name} does not support; expected a case of your own: `case` and `cases` (docs/trainers.md)"
        )


def _blocks(params: Params) -> dict[str, Arm]:
    blocks: dict[str, Arm] = {f"cases.{name}": case for name, case in params.cases.items()}
    for slug, own in params.arms.items():
        blocks |= {f"hypotheses.{slug}.arms.{name}": arm for name, arm in own.items()}
    return blocks


def _without_counterpart(params: Params, trainer: Trainer, case: Arm) -> list[str]:
    """Return the keys that say what this trainer has no counterpart for."""
    known = ("stall_seconds", *trainer.command_keys)
    given = [f"command.{key}" for key in sorted(told(params.command)) if key not in known]
    if case.reward and not trainer.takes_reward:
        given.append(f"cases.{params.case}.reward")
    if (params.launch.config or params.launch.devices) and not trainer.takes_launch:
        given.append("launch")
    if not trainer.takes_context:
        limits = [name for name, own in params.environments.items() if own.max_context]
        given += [f"environments.{name}.max_context" for name in limits]
        blocks = _blocks(params).items()
        given += [f"{key}.rollouts.max_context" for key, b in blocks if "max_context" in b.rollouts]
    return given


def _check_base_models(params: Params) -> None:
    """Check that folders are there, and of a model on the hub the name, for it may not be fetched yet."""
    given = {"base_model": params.base_model}
    given |= {f"base_models.{name}": text for name, text in params.base_models.items()}
    for key, text in given.items():
        try:
            model = base_model(text)
        except InputError as error:
            raise Wrong(f"key '{key}': {error}") from None
        if model.revision or not has_checkout():
            continue
        if missing := [file.name for file in model.beside(ROOT) if not file.is_file()]:
            one = f"a folder with {missing[0]}, or owner/name@revision on the hub"
            raise Wrong.value(key, short(text), one)
        try:
            architecture_of(model, ROOT)
        except InputError as error:
            raise Wrong(f"key '{key}': {error}") from None


def _check_vllm(params: Params) -> None:
    """vLLM can hold the base models as `vllm` says, and a reply in its context."""
    server = params.vllm
    length, parts = server.max_model_len, server.tensor_parallel_size
    used = dict.fromkeys(run.environment for run in runs(params))
    for environment in used:
        key = f"environments.{environment}.max_new_tokens"
        reply = params.environments[environment].max_new_tokens
        if 0 < length <= reply:
            raise Wrong.value("vllm.max_model_len", length, f"more than {key}, {reply}")
    for environment in sorted(used):
        config = config_of(params.base_model_of(environment), ROOT)
        if config is None:
            continue  # neither fetched nor known; the server will say
        # families of their own names for both are left to the server
        most, heads = config.get("max_position_embeddings"), config.get("num_attention_heads", 0)
        if most and length > most:
            raise Wrong.value("vllm.max_model_len", length, f"at most the base model's {most}")
        if heads % parts:
            divisor = f"a divisor of the base model's {heads} attention heads"
            raise Wrong.value("vllm.tensor_parallel_size", parts, divisor)
    if not load_trainer(params.trainer).takes_sampler:
        return
    if params.design == "sequential" and server.shared_by != "run":
        once = "run with design sequential: looks start trainings one by one, but those that share a server start together"
        raise Wrong.value("vllm.shared_by", server.shared_by, once)
    for arm in arms(params):
        lora_r = arm.training.lora_r
        config = config_of(params.base_model_of(arm.environment), ROOT)
        expected = ""
        if not lora_r and server.shared_by != "run":
            expected = f"more with vllm.shared_by {server.shared_by}: one server has one model"
        elif not lora_r and (why := why_not_reloaded(config or {}, vars(server))):
            expected = f"more: {why}"
        elif lora_r > RANKS[-1]:
            expected = f"at most {RANKS[-1]}, as vLLM has it"
        if expected:
            raise Wrong.value("training.lora_r", lora_r, expected, arm)


def _check_verifiers(params: Params) -> None:
    """vf-eval reaches the server, is answered with tool calls, and ends a rollout where ours ends."""
    asks = "with evaluation.verifiers_rows"
    if params.sampler != "vllm":
        raise Wrong.value("sampler", params.sampler, f"vllm {asks}")
    if not params.server.port:
        raise Wrong.value("server.port", 0, f"a port {asks}: vf-eval cannot use a socket file")
    if not params.vllm.tool_call_parser:
        raise Wrong.value("vllm.tool_call_parser", "''", f"a parser, such as hermes, {asks}")
    for key in OURS_ALONE:
        name = f"environments.{params.environment}.{key}"
        if value := getattr(params.environments[params.environment], key):
            raise Wrong.value(name, value, f"0 {asks}: verifiers has no such limit")
    heldout = params.data[params.environment].heldout
    if heldout < params.evaluation.verifiers_rows:
        most = f"at most data.{params.environment}.heldout, {heldout}"
        raise Wrong.value("evaluation.verifiers_rows", params.evaluation.verifiers_rows, most)


def _check_launch(params: Params) -> None:
    """Several processes are started by something, and no GPU is given to two."""
    launch, server = params.launch, params.vllm
    config, taken = launch.config, positions(launch.devices)
    if not config and (launch.processes > 1 or taken):
        raise Wrong(
            "key 'launch.config' is missing, expected a config of accelerate with "
            "launch.processes and launch.devices"
        )
    if config and has_checkout() and not (ROOT / config).is_file():
        raise Wrong.value("launch.config", short(config), "a file")
    if taken and len(set(taken)) != launch.processes:
        each = f"{launch.processes}, one for each of launch.processes"
        raise Wrong.value("launch.devices", short(launch.devices), each)
    both = set(taken) & set(positions(server.devices))
    if both and params.sampler == "vllm":
        raise Wrong(
            f"key 'vllm.devices' has {min(both)}, which launch.devices has too, expected others"
        )


def _check_with(params: Params, key: str, arm: Arm, seen: tuple[str, ...]) -> None:
    """Arms that are combined exist, and none is combined with itself."""
    known = interventions(params)
    for name in arm.with_:
        _known(name, known, key, "arm")
        if name in seen:
            raise Wrong(f"key '{key}' leads back to '{name}', expected other arms")
        _check_with(params, key, known[name], (*seen, name))


def _check_rollouts(arm: Arm, key: str, settings: EnvironmentSettings) -> None:
    for name, value in arm.rollouts.items():
        _known(name, vars(settings), f"{key}.rollouts", "setting")
        if name == "weights":
            for part in value:
                _known(part, settings.weights, f"{key}.rollouts.{name}", "reward part")
            if not sum(value.values()):
                raise Wrong(f"key '{key}.rollouts.{name}' sums to 0, expected more")
