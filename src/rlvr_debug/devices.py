"""GPUs by their positions among those that a job sees: a trainer and its server keep off each other's."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from rlvr_debug.errors import InputError

VISIBLE = "CUDA_VISIBLE_DEVICES"
# what the job saw before it was narrowed, for whoever it starts
SEEN = "RLVR_DEBUG_DEVICES"
_ALL = "all"


def positions(devices: str) -> list[int]:
    """Of params.yaml's value."""
    return [int(number) for number in devices.split(",") if number]


def device_variables(devices: str, environ: Mapping[str, str]) -> dict[str, str]:
    """For a server: nothing where all are wanted. A job that sees too few has them to itself."""
    if not devices:
        return {}
    seen = environ.get(SEEN, environ.get(VISIBLE, _ALL))
    return {VISIBLE: _at(positions(devices), seen) or seen}


def narrowed(devices: str, environ: Mapping[str, str]) -> dict[str, str]:
    """For a training that takes these. Raises InputError where the job sees too few."""
    if not devices:
        return {}
    seen = environ.get(VISIBLE, _ALL)
    if not (found := _at(positions(devices), seen)):
        raise InputError(
            f"launch.devices: asks for {devices}, but {VISIBLE}={seen}; each position needs a visible GPU"
        )
    return {VISIBLE: found, SEEN: seen}


def _at(wanted: list[int], seen: str) -> str:
    """Names of the devices at these positions; "" where one is not there."""
    if seen == _ALL:
        return ",".join(map(str, wanted))
    names = [name for name in seen.split(",") if name]
    return "" if max(wanted) >= len(names) else ",".join(names[n] for n in wanted)


def launch_command(config: Path, processes: int, program: Sequence[str]) -> list[str]:
    """For this interpreter. Port 0: one that is free, for several trainings may run on a machine."""
    options = ["--config_file", str(config), "--num_processes", str(processes)]
    launcher = [sys.executable, "-m", "accelerate.commands.launch", *options]
    return [*launcher, "--main_process_port", "0", *program]


def launch(config: Path, processes: int, devices: str, program: Sequence[str]) -> NoReturn:
    """Become accelerate's launcher of a script and its arguments."""
    if not config.is_file():
        raise InputError(f"{config}: no such file, expected a config of accelerate")
    command = launch_command(config, processes, program)
    os.execve(command[0], command, {**os.environ, **narrowed(devices, os.environ)})
