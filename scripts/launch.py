"""Run a script as several processes, by `accelerate launch`, on the GPUs at given positions."""

import argparse
from pathlib import Path

from rlvr_debug.devices import launch
from rlvr_debug.processes import run_main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="of accelerate")
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--devices", default="", help="positions such as 0,1,2; empty: all")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="a script and its arguments")
    args = parser.parse_args()
    launch(args.config, args.processes, args.devices, args.program)


if __name__ == "__main__":
    run_main(main)
