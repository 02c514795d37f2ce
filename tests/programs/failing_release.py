"""The program of trainer verifiers in which one thing raises: `failing_release.py PLACE RELEASE params.json`."""

import sys

from rlvr_debug.environments.musique import MuSiQue
from rlvr_debug.processes import run_main
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.trainers.verifiers.program import main


def raising(*_: object, **__: object) -> None:
    raise ValueError("broken on purpose\nin two lines")


if __name__ == "__main__":
    {
        "reward": lambda: setattr(MuSiQue, "score", raising),
        "sampler": lambda: setattr(InProcessSampler, "sample", raising),
    }[sys.argv.pop(1)]()
    run_main(main)
