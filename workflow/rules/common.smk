"""What every rule shares: parameters, paths, and the names of runs. No rules."""

import json
import os
import sys
from pathlib import Path

from rlvr_debug.config import load_params, runs
from rlvr_debug.errors import InputError
from rlvr_debug.watchdog import PARENT

# jobs run in Snakemake's own environment, activated or not, with one thread each
os.environ["PATH"] = os.pathsep.join(
    [os.path.dirname(sys.executable), os.environ["PATH"]]
)
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
os.environ[PARENT] = str(os.getpid())

# relative, so that a study's metadata does not change with the place of the checkout
ROOT = os.path.relpath(Path(workflow.basedir).parent)
CHARTS = ["learning", "effects"]


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
RUNS = {(run.environment, run.arm, str(run.seed)): run for run in runs(PARAMS)}
ENVIRONMENTS = sorted({run.environment for run in RUNS.values()})


wildcard_constraints:
    environment="|".join(ENVIRONMENTS),
    arm="[a-z0-9-]+",
    seed="[0-9]+",


def as_json(value):
    """For params: sorted, so that the order of keys in params.yaml reruns nothing."""
    return json.dumps(value, sort_keys=True)


def script(name):
    return str(Path(ROOT, "scripts", f"{name}.py"))


def sources(*packages):
    """The library files that a rule's result depends on; Snakemake does not see imports."""
    library = Path(ROOT, "src", "rlvr_debug")
    return sorted(
        str(file)
        for package in packages
        for file in (
            [library / package]
            if package.endswith(".py")
            else library.glob(f"{package}/*.py")
        )
    )


ROLLOUT_SOURCES = sources("data", "environments", "sampling", "study.py")
TRAINING_SOURCES = sources("grpo", "faults", "diagnostics")


BASE_MODEL = str(Path(ROOT, PARAMS["base_model"]))


def base_model():
    return expand(
        "{folder}/{file}",
        folder=BASE_MODEL,
        file=[
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ],
    )


def environment_json(wildcards):
    return as_json(PARAMS["environments"][wildcards.environment])


def run_json(wildcards):
    return as_json(RUNS[wildcards.environment, wildcards.arm, wildcards.seed].to_json())


def run_files(name):
    """That file of every run."""
    return [f"results/runs/{env}/{arm}/{seed}/{name}" for env, arm, seed in RUNS]
