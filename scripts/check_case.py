"""Check the trainer of a study's case: its first steps, computed again."""

import argparse
from dataclasses import replace
from pathlib import Path

from rlvr_debug.files import write_json
from rlvr_debug.processes import run_main
from rlvr_debug.study.resolved import read_study
from rlvr_debug.trainers import load_trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    from rlvr_debug.replay.answer import (  # with torch, which --help does without
        answer_text,
        timeless,
    )

    job = replace(read_study(args.study).checking(), out=args.out)
    found = timeless(load_trainer(job.run.trainer).check_case(job))
    write_json(job.out, found)
    print(answer_text(found))


if __name__ == "__main__":
    run_main(main)
