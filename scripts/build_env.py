"""Build an environment of its own for a trainer: envs/<name>.txt, to which .envs/<name> is a link."""

import argparse

from rlvr_debug.processes import run_main
from rlvr_debug.venvs import build_venv, venv_names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help=f"one of {', '.join(venv_names())}")
    args = parser.parse_args()
    print(build_venv(args.name))


if __name__ == "__main__":
    run_main(main)
