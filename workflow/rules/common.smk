"""What the other files share: parameters, paths, and the names of runs."""

import json
import os
import shlex
import sys
from pathlib import Path

# before an installed one: DVC runs experiments in copies of the checkout, each with its own code
sys.path.insert(0, str(Path(workflow.basedir).parent / "src"))

from rlvr_debug.study.arms import own_programs, own_rows, runs, unmapped
from rlvr_debug.study.params import load_params
from rlvr_debug.errors import InputError
from rlvr_debug.causes import phase_of, variant_file, variant_names
from rlvr_debug.files import digest_of as digest_of_files, read_yaml
from rlvr_debug.study.jobs import code_digest, set_up_jobs
from rlvr_debug.models.places import base_model_of
from rlvr_debug.trainers import load_trainer
from rlvr_debug.venvs import sampler_venvs

set_up_jobs()

# relative, so that a study's metadata does not change with the place of the checkout
ROOT = os.path.relpath(Path(workflow.basedir).parent)


def _params():
    overlay = config.get("overlay")
    try:
        return load_params(
            Path(ROOT, "params.yaml"), Path(overlay) if overlay else None
        )
    except InputError as error:
        # a traceback would bury the line that says what to do
        print(f"error: {error}", file=sys.stderr)
        os._exit(2)


PARAMS = _params()
ALL_RUNS = list(runs(PARAMS))
# one training for all runs that are told the same
RUNS = {
    (run.environment, run.arm, str(run.seed)): run
    for run in ALL_RUNS
    if run.arm == run.trained_as
}
ENVIRONMENTS = sorted({run.environment for run in ALL_RUNS})
PHASE_OF = {slug: phase_of(slug, PARAMS["hypotheses"]) for slug in PARAMS["hypotheses"]}
# after each of these it is decided whether the next is needed
GATES = (
    sorted(set(PHASE_OF.values()))[:-1]
    if config.get("phases", PARAMS["phases"]) == "gated"
    else []
)


wildcard_constraints:
    environment="|".join(ENVIRONMENTS),
    arm="[a-z0-9-]+",
    seed="[0-9]+",
    server="[a-z0-9-]+",
    phase="[0-9]+",
    name="[a-z0-9.-]+",
    model="[A-Za-z0-9._-]+",


def as_json(value):
    """For params: sorted, so that the order of keys in params.yaml reruns nothing."""
    return json.dumps(value, sort_keys=True)


def options(**values):
    """For params: words of a command line; of what is the same for all jobs, since each value costs each of
    thousands of jobs its time.
    """
    words = [(f"--{name}", str(value)) for name, value in values.items()]
    return shlex.join(word for pair in words for word in pair)


def script(name):
    return str(Path(ROOT, "scripts", f"{name}.py"))


def code(*packages):
    """For params: the library's code that a result depends on, since Snakemake sees no imports.

    Digests and not files among the inputs: each of thousands of jobs would have a hundred.
    """
    return " ".join(
        f"{package}:{code_digest(Path(ROOT, 'src', 'rlvr_debug', package))}"
        for package in packages
    )


ROLLOUT_CODE = (
    "data",
    "environments",
    "models/architectures.py",
    "models/base_model.py",
    "models/places.py",
    "sampling",
)
TRAINER = load_trainer(PARAMS["trainer"])
# what is planted, and not the texts and arms beside it
PLANTED = sorted(
    {fault for run in ALL_RUNS for fault in run.faults} & {*variant_names()}
)
VARIANTS = [
    f"causes/{variant_file(n).parent.name}/{variant_file(n).name}" for n in PLANTED
]
TRAINING_CODE = (
    *ROLLOUT_CODE,
    "causes/__init__.py",
    "grpo",
    "metrics",
    *VARIANTS,
    *TRAINER.code,
)
EVALUATION_CODE = (*ROLLOUT_CODE, "evaluation.py", "serving")
# not what another trainer would read, so that changing it reruns nothing
COMMAND = as_json(
    {k: value for k, value in PARAMS["command"].items() if k in TRAINER.command_keys}
)


def told_causes():
    """For params: what the folders of causes tell, on which verdicts and pages depend."""
    places = Path(ROOT, "src", "rlvr_debug", "causes").glob("*/cause.yaml")
    return digest_of_files(sorted(places, key=str))


def ready(venvs):
    return [str(Path(ROOT, ".envs", name, "ready")) for name in venvs]


# the trainer's environment, the user's program and reward function
TRAINER_FILES = ready(TRAINER.venvs(PARAMS["command"])) + [
    str(Path(ROOT, name)) for name in own_programs(PARAMS, Path(ROOT))
]
# a server has the base model while whoever asks it is at work
SERVED = PARAMS["sampler"] != "in-process"
ENDPOINT = ["results/server/endpoint.json"] if SERVED else []
VLLM = PARAMS["sampler"] == "vllm"
SERVER = PARAMS["server"] | ({"vllm": PARAMS["vllm"]} if VLLM else {})
SERVER_JSON = as_json(SERVER) if SERVED else "{}"
# in training too; other trainers have samplers of their own
TRAINED_ON_VLLM = VLLM and TRAINER.takes_sampler
TRAINING_SERVER = ["serving"] if TRAINED_ON_VLLM else []
SHARED = TRAINED_ON_VLLM and PARAMS["vllm"]["shared_by"] != "run"
SAMPLER_READY = ready(sampler_venvs(PARAMS["sampler"], PARAMS["vllm"]))


MODELS = {name: base_model_of(PARAMS, name) for name in ENVIRONMENTS}
MAIN_MODEL = MODELS[PARAMS["environment"]]
# by folder under .models/
FETCHED = {Path(m.folder).name: m for m in MODELS.values() if m.revision}


def files_of(model):
    return [str(path) for path in model.files(Path(ROOT))]


def model_words(model):
    return options(**{"base-model": Path(ROOT, model.folder)})


def digest_of(model):
    return model.digest(Path(ROOT))


def by_environment(value):
    """Of the environment's base model; for all of them at once where it is one, since Snakemake calls a
    function for every job.
    """
    if set(MODELS.values()) == {MAIN_MODEL}:
        return value(MAIN_MODEL)
    return lambda wildcards: value(MODELS[wildcards.environment])


def shared_endpoint(wildcards):
    """Of the server with the base model, for the environments that have that one."""
    return ENDPOINT if MODELS[wildcards.environment] == MAIN_MODEL else []


# one process, or several by accelerate
LAUNCH = PARAMS["launch"]
LAUNCH_FILES = (
    [script("launch"), str(Path(ROOT, LAUNCH["config"]))] if LAUNCH["config"] else []
)
TRAINING_PYTHON = "python"
if LAUNCH_FILES:
    TRAINING_PYTHON += (
        f" {LAUNCH_FILES[0]} --config {LAUNCH_FILES[1]} --processes {LAUNCH['processes']}"
        f" --devices '{LAUNCH['devices']}'"
    )


def run_of(wildcards):
    return RUNS[wildcards.environment, wildcards.arm, wildcards.seed]


def shared_server(run):
    """The endpoint's file of the server that samples for this training and others."""
    name = "study" if PARAMS["vllm"]["shared_by"] == "study" else run.arm
    return f"results/server/{run.environment}/{name}/endpoint.json"


def policies_endpoint(wildcards):
    return shared_server(run_of(wildcards))


def sampling_words(wildcards):
    """Of train.py: who answers its rollouts, where that is not itself."""
    words = options(sampler="vllm", server=SERVER_JSON)
    return f"{words} --endpoint {policies_endpoint(wildcards)}" if SHARED else words


def trained_with(endpoint):
    """The runs that a shared server samples for."""
    return [run for run in RUNS.values() if shared_server(run) == endpoint]


def row_files(wildcards):
    """The user's own files, where the source is jsonl."""
    return [str(Path(ROOT, n)) for n in own_rows(PARAMS["data"][wildcards.environment])]


def data_json(wildcards):
    return as_json(PARAMS["data"][wildcards.environment])


def environment_json(wildcards):
    return as_json(PARAMS["environments"][wildcards.environment])


def run_json(wildcards):
    return as_json(run_of(wildcards).to_json())


def runs_until(phase):
    """Of the controls and of all hypotheses up to that phase."""
    return [run for run in ALL_RUNS if PHASE_OF.get(run.hypothesis, 0) <= phase]


def first_seeds(phase):
    """Of each arm until that phase, the run of its least seed."""
    by_seed = sorted(runs_until(phase), key=lambda run: -run.seed)
    return {run.arm: run for run in by_seed}.values()


def run_files(name, found):
    """That file of each of these runs."""
    folders = [f"results/runs/{r.environment}/{r.trained_as}/{r.seed}" for r in found]
    return sorted({f"{folder}/{name}" for folder in folders})


def last_phase():
    """The first phase that found a cause, or the last. Asks for the gates on the way."""
    for phase in GATES:
        decided = checkpoints.decide_phase.get(phase=phase).output[0]
        with open(decided) as file:
            if json.load(file)["causes"]:
                return phase
    return max(PHASE_OF.values(), default=0)
