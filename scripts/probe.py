"""Check the components of the case's trainer at step 0."""

import argparse
import json
from pathlib import Path

from rlvr_debug.arms import Run
from rlvr_debug.errors import run_main
from rlvr_debug.probes import readable
from rlvr_debug.probes.case import probe_case
from rlvr_debug.probes.recording import probe_recording
from rlvr_debug.trainers.program import program_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="the run, as JSON")
    parser.add_argument("--environment", required=True, help="its environment's settings, as JSON")
    parser.add_argument("--base-model", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--command", default="{}", help="params.yaml's, as JSON")
    args = parser.parse_args()
    run = Run.from_json(json.loads(args.run))
    files = (json.loads(args.environment), args.base_model, args.rows, args.out)
    if run.trainer == "own":
        found = probe_case(run, *files)
    else:
        found = probe_recording(run, *files, program_of(run.trainer, json.loads(args.command)))
    print("\n".join(map(readable, found)))


if __name__ == "__main__":
    run_main(main)
