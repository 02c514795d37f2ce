"""verl's training with its first steps recorded: `python -m rlvr_debug.verl --record FOLDER -m verl.trainer.main_ppo ...`.

What follows the options is the user's own command, unchanged: `-m` and a module, or a script, and its arguments.
"""

import argparse
import json
import os
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.version import Version

from rlvr_debug.errors import InputError
from rlvr_debug.processes import run_main


def main() -> None:
    """Run the command, and say how its record is checked."""
    parser, rest = argparse.ArgumentParser(prog="python -m rlvr_debug.verl"), argparse.REMAINDER
    parser.add_argument("--record", required=True, type=Path, help="a new folder")
    parser.add_argument("--steps", type=int, default=2, help="that are recorded")
    parser.add_argument("--no-rewards", action="store_true", help="call no reward function again")
    parser.add_argument("--go-on", action="store_true", help="train on after these steps")
    parser.add_argument("-m", nargs=rest, dest="module", help="verl.trainer.main_ppo ...")
    parser.add_argument("script", nargs=rest, help="or a script, and its arguments")
    asked = parser.parse_args()
    folder = asked.record.absolute()
    if folder.exists():
        raise InputError(f"{folder}: exists; give --record a new folder")
    command = ["-m", *asked.module] if asked.module else asked.script
    if not command:
        raise InputError("no command given, expected -m verl.trainer.main_ppo and its arguments")
    with suppress(PackageNotFoundError):  # a script may find it elsewhere
        if Version(found := version("verl")) < Version("0.9"):
            raise InputError(
                f"verl {found}: expected 0.9 or later; the steps of earlier ones are other functions"
            )
    told = {"folder": str(folder), "steps": asked.steps}
    told |= {"rewards": not asked.no_rewards, "goes_on": asked.go_on}
    modules = [os.environ.get("VERL_USE_EXTERNAL_MODULES"), "rlvr_debug.recorders.verl.hook"]
    variables = {"VERL_USE_EXTERNAL_MODULES": ",".join(filter(None, modules))}
    variables["RLVR_DEBUG_VERL"] = json.dumps(told)
    done = subprocess.run([sys.executable, *command], env=os.environ | variables, check=False)
    if not folder.is_dir():
        raise InputError(f"{folder}: nothing was recorded, because verl's trainer took no step")
    print(f"rlvr-debug check --record {asked.record}")
    sys.exit(done.returncode)


if __name__ == "__main__":
    run_main(main)
