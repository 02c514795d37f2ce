"""The workflow on a real Slurm, in copies of the project; and the profiles."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import yaml

from rlvr_debug.blocks import told
from rlvr_debug.study.params import load_params
from tests.shared import ran
from tests.slurm import ask, missing, slurm, until
from tests.test_workflow import (
    ARMS,
    ROOT,
    Project,
    copy,
    end,
    error_line,
    finished_mini,
    wait_for,
)

PROFILES = ROOT / "workflow" / "profiles"
WITH_GPU = ("train", "evaluate_run", "evaluate_baseline")
BASELINE = "results/baseline/musique.json"
SOON = ("--slurm-init-seconds-before-status-checks", "1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """A Slurm, one at a time on this machine: the variables that lead to it."""
    if lacking := missing():
        pytest.skip(lacking)
    with Path(tempfile.gettempdir(), "rlvr-debug-slurm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with slurm() as found:
            yield found


def small(folder: Path, cluster: dict[str, str]) -> Project:
    project = copy(ROOT, folder)
    project.environment.update(cluster)
    return project


def processes_in(folder: Path) -> list[psutil.Process]:
    found = psutil.process_iter(["cwd"])
    return [each for each in found if Path(each.info["cwd"] or "/").is_relative_to(folder)]


# --- a study

NOTHING = "Nothing to be done (all requested files are present and up to date)."


class Study(NamedTuple):
    """A default study that `dvc repro` ran on Slurm; the cluster's jobs; the same study run without, from an overlay."""

    project: Project
    said: str
    jobs: dict[str, str]
    local: Project


def default_study(folder: Path) -> Project:
    """With MINI for params.yaml."""
    project = copy(ROOT, folder)
    params = load_params(ROOT / "params.yaml", project.overlay())
    (folder / "params.yaml").write_text(yaml.safe_dump(told(params)), encoding="utf-8")
    project.study, project.results = folder, folder / "results"
    return project


def call(project: Project, *command: str) -> str:
    done = ran([sys.executable, *command], cwd=project.root, env=project.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def study(cluster: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Study:
    project = default_study(tmp_path_factory.mktemp("slurm"))
    for name in ("dvc.yaml", ".dvcignore", ".gitignore"):
        shutil.copy2(ROOT / name, project.root / name)
    # a profile of the user's own: ours, but that asks sooner
    (project.root / "mine").mkdir()
    text = (PROFILES / "slurm" / "config.yaml").read_text(encoding="utf-8")
    sooner = re.sub(r"(?m)^(slurm-init-seconds\S+) \d+$", r"\1 1", text)
    (project.root / "mine" / "config.yaml").write_text(sooner, encoding="utf-8")
    # as in the activated environment
    path = os.pathsep.join([str(Path(sys.executable).parent), cluster["PATH"]])
    project.environment |= {**cluster, "PATH": path, "SNAKEMAKE_PROFILE": "mine"}
    subprocess.run(["git", "init", "-q"], cwd=project.root, check=True)
    call(project, "-m", "dvc", "init", "-q")
    said = call(project, "-m", "dvc", "repro")
    jobs = ask(cluster, "scontrol", "show", "job", "--details").strip().split("\n\n")
    local = finished_mini(tmp_path_factory)
    return Study(project, said, {comment_of(job): job for job in jobs}, local)


def comment_of(job: str) -> str:
    [comment] = re.findall(r"Comment=(.*)", job)
    return str(comment).strip()


@pytest.mark.slurm
def test_a_study_on_slurm_ends_with_the_bytes_of_a_local_one(study: Study) -> None:
    assert len(study.project.tables()) > 4
    assert study.project.tables() == study.local.tables()


@pytest.mark.slurm
def test_what_takes_long_runs_on_the_cluster_and_the_rest_beside_snakemake(study: Study) -> None:
    rules = {comment.partition("_wildcards_")[0] for comment in study.jobs}
    assert rules == {f"rule_{rule}" for rule in (*WITH_GPU, "check_case", "audit_rewards")}
    of_arms = {f"rule_{rule}_wildcards_musique_{arm}_0" for rule in WITH_GPU[:2] for arm in ARMS}
    assert of_arms < set(study.jobs)
    assert all("JobState=COMPLETED" in job for job in study.jobs.values())


@pytest.mark.slurm
def test_training_and_evaluation_ask_for_a_gpu_as_gres(study: Study) -> None:
    for comment, job in study.jobs.items():
        [asked] = re.findall("JOB_GRES=(.*)", job)
        assert asked == (
            "gpu:1" if comment.startswith(tuple(f"rule_{rule}" for rule in WITH_GPU)) else "(null)"
        ), comment


@pytest.mark.slurm
def test_the_cores_of_this_machine_are_no_limit_to_a_cluster(study: Study) -> None:
    assert "Provided remote nodes: 100" in study.said
    assert "Provided cores" not in study.said


@pytest.mark.slurm
def test_after_dvc_repro_on_slurm_neither_dvc_nor_snakemake_has_anything_to_do(
    study: Study,
) -> None:
    assert "up to date" in call(study.project, "-m", "dvc", "status")
    assert NOTHING in call(study.project, "-m", "snakemake", "-n")


# --- failures


@pytest.mark.slurm
def test_a_job_that_fails_on_the_cluster_ends_the_study_with_its_error_line(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    project = small(tmp_path, cluster)
    weights = project.root / "models" / "tiny" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    done = project.run("--profile", "slurm", "--", *SOON, "--retries", "0", BASELINE)
    assert error_line(done).startswith(
        "error: ../../models/tiny/model.safetensors: expected safetensors"
    )
    assert done.stderr.splitlines()[-1] == error_line(done)


@pytest.mark.slurm
def test_jobs_of_a_killed_run_are_named_and_once_they_are_ended_the_study_goes_on(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    project = small(tmp_path, cluster)
    arguments = ("--profile", "slurm", "--", *SOON, BASELINE)
    running = project.start(*arguments)
    try:
        wait_for(project.study, "logs/evaluate_baseline/musique.log", running)
    finally:
        end(running)
    of_the_job = processes_in(project.study)
    assert of_the_job
    for process in of_the_job:
        process.suspend()  # a job of seconds would end before the next lines
    queue = ("squeue", "--noheader", "--format=%A")
    [job] = ask(cluster, *queue).split()
    assert error_line(project.run(*arguments)) == (
        f"error: {project.study}: Slurm jobs of this study are running; wait for them or, "
        f"if their run was killed: scancel {job}"
    )
    assert all(process.is_running() for process in of_the_job)
    ask(cluster, "scancel", job)
    until(lambda: not ask(cluster, *queue))
    until(lambda: not processes_in(project.study))
    done = project.run(*arguments)
    assert done.returncode == 0, done.stderr
    assert (project.study / BASELINE).is_file()


# --- services

SERVICE = """
rule all:
    input: "0.client", "1.client"

rule server:
    output: service("endpoint")
    threads: 0
    resources: gpu=1
    shell: "echo $SLURM_JOB_ID > server; trap 'touch ended; exit 0' TERM; touch {output};"
        " while true; do sleep 0.1; done"

rule client:
    input: "endpoint"
    output: "{n}.client"
    shell: "test ! -e ended && echo $SLURM_JOB_ID > {output}"
"""


@pytest.mark.slurm
def test_a_service_and_its_consumers_are_one_job_on_slurm(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "Snakefile").write_text(SERVICE, encoding="utf-8")
    command = [sys.executable, "-m", "snakemake", "--profile", str(PROFILES / "slurm"), *SOON]
    done = ran(command, cwd=tmp_path, env={**os.environ, **cluster})
    assert done.returncode == 0, done.stderr
    [job] = {(tmp_path / name).read_text() for name in ("server", "0.client", "1.client")}
    said = ask(cluster, "scontrol", "show", "job", job.strip(), "--details")
    assert "NumCPUs=2 " in said  # of two clients; the server takes none
    assert "JOB_GRES=gpu:1\n" in said
    assert (tmp_path / "ended").exists()
    assert processes_in(tmp_path) == []


# --- profiles


@pytest.mark.heavy
def test_without_a_profile_snakemake_takes_all_cores(tmp_path: Path) -> None:
    done = copy(ROOT, tmp_path).snakemake("data/splits/musique/manifest.json")
    assert done.returncode == 0
    assert f"Provided cores: {len(os.sched_getaffinity(0))}" in done.stderr


TRAIN = """
rule all:
    input: "0.txt", "1.txt"

rule train:
    output: "{n}.txt"
    shell: "date +%s.%N > {output}; sleep 0.5; date +%s.%N >> {output}"
"""


@pytest.mark.heavy
def test_jobs_that_need_the_gpu_of_one_machine_run_one_after_another(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(TRAIN, encoding="utf-8")
    command = [sys.executable, "-m", "snakemake", "--cores", "2"]

    def spans(*more: str) -> list[list[float]]:
        subprocess.run(
            [*command, "--forceall", *more], cwd=tmp_path, capture_output=True, check=True
        )
        found = [(tmp_path / f"{n}.txt").read_text().split() for n in (0, 1)]
        return sorted([float(moment) for moment in each] for each in found)

    first, second = spans("--profile", str(PROFILES / "gpu"))
    assert first[1] <= second[0]
    first, second = spans()
    assert first[1] > second[0]
