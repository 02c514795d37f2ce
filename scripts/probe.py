"""Check the components of the case's trainer at step 0."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from rlvr_debug.files import write_json
from rlvr_debug.probes import readable
from rlvr_debug.processes import run_main
from rlvr_debug.trainers import load_trainer
from rlvr_debug.trainers.base import Job, Run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="the run, as JSON")
    parser.add_argument("--environment", required=True, help="its environment's settings, as JSON")
    parser.add_argument("--base-model", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--command", default="{}", help="params.yaml's, as JSON")
    args = parser.parse_args()
    job = Job(
        Run.from_json(json.loads(args.run)),
        json.loads(args.environment),
        args.base_model,
        args.rows,
        args.out,
        command=json.loads(args.command),
    )
    found = load_trainer(job.run.trainer).probe(job)
    write_json(job.out, {each.probe: asdict(each) for each in found})
    print("\n".join(map(readable, found)))


if __name__ == "__main__":
    run_main(main)
