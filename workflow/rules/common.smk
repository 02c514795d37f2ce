"""What the other files share: parameters, paths, and the names of runs."""

import functools
import itertools
import os
import sys
from dataclasses import replace
from pathlib import Path

# before an installed one: DVC runs experiments in copies of the checkout, each with its own code
sys.path.insert(0, str(Path(workflow.basedir).parent / "src"))

from rlvr_debug.blocks import told as plain
from rlvr_debug.verdicts.looks import look_file, read_look
from rlvr_debug.study.params import load_params
from rlvr_debug.study.resolved import own_programs, own_rows, resolve, write_study
from rlvr_debug.errors import InputError
from rlvr_debug.causes import variant_file, variant_names
from rlvr_debug.environments import environment_names
from rlvr_debug.files import read_yaml
from rlvr_debug.jobs import Sampling, settings_digest
from rlvr_debug.study.digests import code_digest, set_up_jobs

set_up_jobs()

# relative, so that a study's metadata does not change with the place of the checkout
ROOT = os.path.relpath(Path(workflow.basedir).parent)


def _study():
    overlay = config.get("overlay")
    try:
        params = load_params(
            Path(ROOT, "params.yaml"), Path(overlay) if overlay else None
        )
        phases = config.get("phases", params.phases)
        return resolve(replace(params, phases=phases), Path(ROOT))
    except InputError as error:
        # a traceback would bury the line that says what to do
        print(f"error: {error}", file=sys.stderr)
        os._exit(2)


STUDY = _study()
PARAMS = STUDY.params


# Not the output of a job, which others would have as an ancient() input. When such a job has to run, Snakemake 9.27 does
# not look whether those after it have to (github.com/snakemake/snakemake/issues/4166). The digest of what a job reads is in its params.
onstart:
    evaluated_by = {name: evaluation_code(name) for name in ENVIRONMENTS}
    write_study(STUDY, Path("results/study.json"), evaluated_by)


ENVIRONMENTS = STUDY.environments


wildcard_constraints:
    environment="|".join(ENVIRONMENTS),
    arm="[a-z0-9-]+",
    seed="[0-9]+",
    server="[a-z0-9-]+",
    look="[0-9]+",
    name="[a-z0-9.-]+",
    model="[A-Za-z0-9._-]+",


# of every rule, by one absolute path: Snakemake takes one that is told in two ways for two environments
TRAIN_PINS = str(Path(workflow.basedir).parent.resolve() / "envs" / "train.yaml")


def script(name):
    return str(Path(ROOT, "scripts", f"{name}.py"))


PACKAGE = Path(ROOT, "src", "rlvr_debug")


def code(name, *plug_ins):
    """For params: a digest of all that the script runs and reads, since Snakemake sees no imports.

    Not files among the inputs: each of thousands of jobs would have a hundred. plug_ins: what it imports by name.
    """
    return code_digest(Path(script(name)), *(PACKAGE / each for each in plug_ins))


def environment(name):
    return f"environments/{name}"


def variants(faults):
    """What is planted, and not the texts and arms beside it."""
    return map(variant_file, sorted({*faults} & {*variant_names()}))


TRAINER = STUDY.trainer
TRAINED_ON_VLLM = STUDY.trains_on_vllm
# of a sampler that is a server
SERVED = ["serving/served.py"] if Sampling(PARAMS.sampler).served else []
# what tables, verdicts and pages read and ask
CAUSES = [
    *sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.glob("causes/*/*.yaml")),
    "causes/unnamed.yaml",
    f"trainers/{TRAINER.name}/__init__.py",
]
# by which results/study.json is read
SETTINGS = [f"environments/{name}/settings.py" for name in environment_names()]


def faults_of(run):
    """Those that it has, and those of the run that its stages are compared with."""
    return (*run.faults, *(STUDY.shadow(run) or ()))


# thousands of runs have a few digests
@functools.cache
def training_code(environment_name, faults):
    launched = ["devices.py"] if PARAMS.launch.config else []
    served = SERVED if TRAINED_ON_VLLM else []
    own = (*TRAINER.trains_by, environment(environment_name), *variants(faults))
    return code("train", *own, *launched, *served)


def checking_code():
    own = (*TRAINER.records_by, environment(PARAMS.environment))
    return code("check_case", *own, *variants(STUDY.checking().run.faults), *CAUSES)


@functools.cache
def evaluation_code(name):
    return code("evaluate", environment(name), *SERVED)


def ready(venvs):
    return [str(Path(ROOT, ".envs", f"{name}.ready")) for name in venvs]


# the trainer's environment, the user's program and reward function
TRAINER_FILES = ready(TRAINER.venvs(plain(PARAMS.command))) + [
    str(Path(ROOT, name)) for name in own_programs(PARAMS, Path(ROOT))
]
SAMPLER_READY = ready(PARAMS.sampler_venvs)


# what each row earned in the harness of verifiers, beside ours
VERIFIERS_TABLE = "results/tables/verifiers.csv"
BY_VERIFIERS = [VERIFIERS_TABLE] if PARAMS.evaluation.verifiers_rows else []


MODELS = {name: PARAMS.base_model_of(name) for name in ENVIRONMENTS}
MAIN_MODEL = MODELS[PARAMS.environment]
# by folder under .models/
FETCHED = {Path(m.folder).name: m for m in MODELS.values() if m.revision}


def files_of(model):
    return [str(path) for path in model.files(Path(ROOT))]


def digest_of(model):
    return model.digest(Path(ROOT))


def by_environment(value):
    """Of the environment's base model; for all of them at once where it is one, since Snakemake calls a
    function for every job.
    """
    if set(MODELS.values()) == {MAIN_MODEL}:
        return value(MAIN_MODEL)
    return lambda wildcards: value(MODELS[wildcards.environment])


# one process, or several by accelerate
LAUNCH = PARAMS.launch
LAUNCH_FILES = (
    [script("launch"), str(Path(ROOT, LAUNCH.config))] if LAUNCH.config else []
)
TRAINING_PYTHON = "python"
if LAUNCH_FILES:
    TRAINING_PYTHON += (
        f" {LAUNCH_FILES[0]} --config {LAUNCH_FILES[1]} --processes {LAUNCH.processes}"
        f" --devices '{LAUNCH.devices}'"
    )


def name_of(wildcards):
    """A run's name in the study."""
    return f"{wildcards.environment}/{wildcards.arm}/{wildcards.seed}"


def file_or_none(path):
    """For inputs: a file that some jobs need."""
    return [str(path)] if path else []


def row_files(wildcards):
    """The user's own files, where the source is jsonl or a folder."""
    rows = own_rows(PARAMS.data[wildcards.environment], Path(ROOT))
    return [str(Path(ROOT, name)) for name in rows]


# arms that the runs of the case and the control may show to change nothing
COMPARED = STUDY.compared


def results():
    """Results, where it is said which arms change nothing: none of them is trained."""
    # a dry run before that counts all that there may be
    if COMPARED and not workflow.dryrun:
        checkpoints.compare_stages.get()
    return Path("results")


def look_after(number):
    """What that look decided, which is asked for; of 0, what every study begins with."""
    if not number:
        return STUDY.looked_in(results()).first()
    return read_look(Path(checkpoints.decide_look.get(look=number).output[0]))


def last_look():
    """The look after which nothing more is to run. Asks for those before it."""
    return next(look for look in map(look_after, itertools.count()) if not look.more)


def look_files(number):
    """The look of that number, in a list; 0 has no file."""
    return [str(look_file(Path("results"), number))] if number else []


def chosen():
    """The runs of the study, once its looks have decided."""
    return STUDY.chosen(last_look())


def sure_runs():
    """Runs that no look is needed for, whichever arms change nothing."""
    fewest = replace(STUDY.looked, unchanged=frozenset(COMPARED))
    return STUDY.chosen(fewest.first())


def first_seeds(found):
    """Of each arm, the run of its least seed."""
    return {run.arm: run for run in sorted(found, key=lambda run: -run.seed)}.values()


def run_files(name, found):
    """That file of each of these runs."""
    return sorted({f"results/runs/{run.name}/{name}" for run in found})
