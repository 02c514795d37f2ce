"""Install envs/<name>.txt into the environment of this interpreter, which needs nothing but pip."""

import argparse
import sys

from rlvr_debug.processes import run_main
from rlvr_debug.venvs import install


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="a file of envs/, such as train")
    args = parser.parse_args()
    install(args.name, sys.executable, ("-r", f"envs/{args.name}.txt"), compiled=True)


if __name__ == "__main__":
    run_main(main)
