"""A real Slurm on the loopback interface, from Debian's packages slurm-wlm and munge.

One node of two cores and two GPUs that are plain files, with keys, ports, state and logs of its own;
no accounting. By hand, as root: `python -m tests.slurm` runs a shell in which squeue and sbatch work.
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.shared import ran

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
SECONDS = 60


def missing() -> str:
    """What this machine lacks to run it, or nothing."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)}: install Debian's slurm-wlm and munge"
    return "" if os.geteuid() == 0 else "only root can start a Slurm"


@contextmanager
def slurm() -> Iterator[dict[str, str]]:
    """The variables that lead clients to it. Ends every job and daemon on exit."""
    # not pytest's folder: the path of a socket has 108 characters at most
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, ExitStack() as daemons:
        folder = Path(name)
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (folder / "munge.key").chmod(0o400)
        _configure(folder)
        cluster = _clients(folder)
        munge = [
            f"--{kind}-file={folder / f'munge.{kind}'}" for kind in ("key", "pid", "log", "seed")
        ]
        # --force: a folder in /tmp is not private enough for its taste
        munge += [f"--socket={folder / 'munge.socket'}", "--force"]
        for command in (["munged", "--foreground", *munge], ["slurmctld", "-D"], ["slurmd", "-D"]):
            daemons.enter_context(_daemon(command, folder, cluster))
        try:
            until(lambda: ask(cluster, "sinfo", "--noheader", "--states=idle"))
        except TimeoutError as error:
            for log in folder.glob("*.out"):
                error.add_note(f"{log.name}: {log.read_text()[-1000:]}")
            raise
        daemons.callback(_end_jobs, cluster)
        yield cluster


def _configure(folder: Path) -> None:
    host = socket.gethostname().partition(".")[0]
    for gpu in ("gpu0", "gpu1"):
        (folder / gpu).touch()
    (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File={folder}/gpu[0-1]\n")
    with socket.socket() as one, socket.socket() as two:
        ports = []
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
            ports.append(each.getsockname()[1])
    settings = {
        "ClusterName": "test",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": ports[0],
        "SlurmdPort": ports[1],
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthInfo": f"socket={folder}/munge.socket",
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "spool",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmdPidFile": folder / "slurmd.pid",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "SlurmdParameters": "config_overrides",  # the cores and memory below, whatever there is
        "GresTypes": "gpu",
        "MinJobAge": 3600,  # scontrol and squeue know a job that long after its end
        "SchedulerParameters": "batch_sched_delay=0",
        "KillWait": 5,
    }
    # none of it is enforced
    node = f"NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=64000 Gres=gpu:2"
    partition = "PartitionName=test Nodes=ALL Default=YES"
    lines = [f"{key}={value}" for key, value in settings.items()]
    (folder / "slurm.conf").write_text("\n".join([*lines, node, partition]) + "\n")


def _clients(folder: Path) -> dict[str, str]:
    """The executor takes SLURM_CONF away from srun, which therefore sets it itself."""
    srun = folder / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {shutil.which("srun")} "$@"\n')
    srun.chmod(0o755)
    path = os.pathsep.join([str(srun.parent), os.environ["PATH"]])
    return {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": path}


@contextmanager
def _daemon(command: list[str], folder: Path, cluster: Mapping[str, str]) -> Iterator[None]:
    """In the foreground, and gone with this process even if that is killed."""
    with (folder / f"{command[0]}.out").open("wb") as said:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command],
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, **cluster},
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _end_jobs(cluster: Mapping[str, str]) -> None:
    ask(cluster, "scancel", "--user=root")
    until(lambda: not ask(cluster, "squeue", "--noheader"))


def ask(cluster: Mapping[str, str], *command: str) -> str:
    """What a client of it says; nothing where it fails."""
    environment = {**os.environ, **cluster}
    done = ran(command, env=environment)
    return done.stdout if done.returncode == 0 else ""


def until(condition: Callable[[], object]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so after {SECONDS} s")
        time.sleep(0.1)


if __name__ == "__main__":
    if lacking := missing():
        sys.exit(f"error: {lacking}")
    with slurm() as found:
        subprocess.run([os.environ.get("SHELL", "sh")], env={**os.environ, **found}, check=False)
