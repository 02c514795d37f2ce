"""A training as several processes: accelerate's launcher on the GPUs that params.yaml gives it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rlvr_debug.devices import narrowed
from rlvr_debug.errors import InputError


def launch_command(config: Path, processes: int, program: Sequence[str]) -> list[str]:
    """For this interpreter. Port 0: one that is free, for several trainings may run on a machine."""
    told = ["--config_file", str(config), "--num_processes", str(processes)]
    launcher = [sys.executable, "-m", "accelerate.commands.launch", *told]
    return [*launcher, "--main_process_port", "0", *program]


def launch(config: Path, processes: int, devices: str, program: Sequence[str]) -> NoReturn:
    """Become that launcher. program: a script and its arguments. Raises InputError for a config or GPUs
    that are not there."""
    if not config.is_file():
        raise InputError(f"{config}: no such file, expected a config of accelerate")
    command = launch_command(config, processes, program)
    os.execve(command[0], command, {**os.environ, **narrowed(devices, os.environ)})
