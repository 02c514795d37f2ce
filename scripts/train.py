"""Train one arm with one seed."""

import argparse
import json
from pathlib import Path

from rlvr_debug.metrics.settings import DiagnosticSettings
from rlvr_debug.processes import run_main
from rlvr_debug.trainers import load_trainer
from rlvr_debug.trainers.base import Job, Run


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
    job = Job(
        Run.from_json(json.loads(args.run)),
        json.loads(args.environment),
        args.base_model,
        args.rows,
        args.out,
        DiagnosticSettings(**json.loads(args.diagnostics)),
        json.loads(args.command),
        args.sampler,
        json.loads(args.server),
        args.endpoint,
    )
    load_trainer(job.run.trainer).train(job)


if __name__ == "__main__":
    run_main(main)
