"""Check the trainer of a study's case: its first steps, computed again."""

import argparse
from dataclasses import replace
from pathlib import Path

from rlvr_debug.files import write_json
from rlvr_debug.jobs import read_job
from rlvr_debug.processes import run_main
from rlvr_debug.trainers import CHECKED_STEPS, Job, load_trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    # with torch, which --help does without
    from rlvr_debug.replay.answer import answer_of, answer_text, timeless
    from rlvr_debug.replay.check import check

    job = replace(read_job(args.study, "check_case", Job), out=args.out)
    record = load_trainer(job.run.trainer).record(job, CHECKED_STEPS)
    found = timeless(answer_of(record, check(record)))
    write_json(job.out, found)
    print(answer_text(found))


if __name__ == "__main__":
    run_main(main)
