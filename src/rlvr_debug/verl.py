"""verl's training with its first steps recorded: `python -m rlvr_debug.verl --record FOLDER -m verl.trainer.main_ppo ...`.

What follows the options is the user's own command, unchanged: `-m` and a module, or a script, and its arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from rlvr_debug.errors import InputError
from rlvr_debug.processes import run_main

_HOOK = "rlvr_debug.recorders.verl.hook"


def main() -> None:
    """Run the command, and say where the record is."""
    parser = argparse.ArgumentParser(prog="python -m rlvr_debug.verl", description=__doc__)
    parser.add_argument("--record", required=True, help="a new folder")
    parser.add_argument("--steps", type=int, default=2, help="that are recorded")
    parser.add_argument("--no-rewards", action="store_true", help="call no reward function again")
    parser.add_argument("--go-on", action="store_true", help="train on after these steps")
    rest = argparse.REMAINDER
    parser.add_argument("-m", nargs=rest, dest="module", help="verl.trainer.main_ppo ...")
    parser.add_argument("script", nargs=rest, help="or a script, and its arguments")
    asked = parser.parse_args()
    command = ["-m", *asked.module] if asked.module else asked.script
    folder = Path(asked.record).absolute()
    if not command:
        raise InputError("found no command, expected -m verl.trainer.main_ppo and its arguments")
    if folder.exists():
        raise InputError(f"{folder}: exists, expected a new folder for the record")
    told = {
        "folder": str(folder),
        "steps": asked.steps,
        "rewards": not asked.no_rewards,
        "goes_on": asked.go_on,
    }
    others = os.environ.get("VERL_USE_EXTERNAL_MODULES", "")
    variables = {
        "RLVR_DEBUG_VERL": json.dumps(told),
        "VERL_USE_EXTERNAL_MODULES": ",".join(filter(None, [others, _HOOK])),
    }
    done = subprocess.run([sys.executable, *command], env=os.environ | variables, check=False)
    if not folder.is_dir():
        raise InputError(f"{folder}: nothing was recorded, as no step of verl's trainers was made")
    print(f"rlvr-debug check --record {asked.record}")
    sys.exit(done.returncode)


if __name__ == "__main__":
    run_main(main)
