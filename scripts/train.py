"""Train one arm with one seed."""

import argparse
import json
from pathlib import Path

from rlvr_debug.arms import Run
from rlvr_debug.diagnostics.settings import DiagnosticSettings
from rlvr_debug.errors import run_main
from rlvr_debug.study import train_run
from rlvr_debug.trainers.program import program_of, train_with_program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="the run, as JSON")
    parser.add_argument("--environment", required=True, help="its environment's settings, as JSON")
    parser.add_argument("--diagnostics", default="{}", help="what else it records, as JSON")
    parser.add_argument("--base-model", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--command", default="{}", help="params.yaml's, as JSON")
    parser.add_argument("--sampler", default="in-process", help="that of params.yaml")
    parser.add_argument("--server", default="{}", help="the settings of one, as JSON")
    parser.add_argument("--endpoint", type=Path, help="of a server that several runs share")
    args = parser.parse_args()
    run = Run.from_json(json.loads(args.run))
    diagnostics = DiagnosticSettings(**json.loads(args.diagnostics))
    files = (json.loads(args.environment), args.base_model, args.rows, args.out)
    if run.trainer == "own":
        server = json.loads(args.server)
        train_run(run, *files, diagnostics, args.sampler, server, args.endpoint)
    else:
        program = program_of(run.trainer, json.loads(args.command))
        kept = (diagnostics.rollouts_every, diagnostics.rollouts_kept)
        train_with_program(run, *files, program, *kept)


if __name__ == "__main__":
    run_main(main)
