"""Check the components of the case's trainer at step 0."""

import argparse
from dataclasses import asdict, replace
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
    from rlvr_debug.probes import readable  # with torch, which --help does without

    job = replace(read_study(args.study).probing(), out=args.out)
    found = load_trainer(job.run.trainer).probe(job)
    write_json(job.out, {each.probe: asdict(each) for each in found})
    print("\n".join(map(readable, found)))


if __name__ == "__main__":
    run_main(main)
