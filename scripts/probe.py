"""Check the components of the case's trainer at step 0."""

import argparse
import json
from pathlib import Path

from rlvr_debug.config import Run
from rlvr_debug.errors import run_main
from rlvr_debug.probes import readable
from rlvr_debug.probes.case import probe_case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="the run, as JSON")
    parser.add_argument("--environment", required=True, help="its environment's settings, as JSON")
    parser.add_argument("--base-model", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    found = probe_case(
        Run.from_json(json.loads(args.run)),
        json.loads(args.environment),
        args.base_model,
        args.rows,
        args.out,
    )
    print("\n".join(map(readable, found)))


if __name__ == "__main__":
    run_main(main)
