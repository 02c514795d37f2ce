"""Say what the logs of a run of yours speak for, and what the cheapest next experiment is.

Exit status: 0 for a log that was read, whatever was found; 2 for one that could not be, in one line.
"""

import argparse
import json
from pathlib import Path

from rlvr_debug.diagnose.rank import diagnose, write_study
from rlvr_debug.diagnose.report import diagnosis_json, diagnosis_text
from rlvr_debug.errors import InputError, run_main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="a log file, or the folder of one run")
    parser.add_argument(
        "--limit", type=int, default=5, help="hypotheses shown in full, and written; 0: all"
    )
    parser.add_argument("--gpus", type=int, default=1, help="that the run had; 0: processors only")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    parser.add_argument("--overlay-out", type=Path, help="write the study of what was ranked here")
    parser.add_argument("--trainer", choices=["trl", "command"], default="trl")
    args = parser.parse_args()
    for name in ("limit", "gpus"):
        if getattr(args, name) < 0:
            raise InputError(f"--{name}: found {getattr(args, name)}, expected 0 or more")
    found = diagnose(args.path, args.gpus, args.trainer)
    if args.overlay_out:
        write_study(found, args.limit, args.trainer, args.overlay_out)
    text = diagnosis_text(found, args.limit)
    print(json.dumps(diagnosis_json(found), indent=2) if args.json else text)


if __name__ == "__main__":
    run_main(main)
