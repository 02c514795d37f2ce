"""Check the components of a released trainer at step 0, in that release's environment.

Run it as `python -m lab.releases.probe --package verifiers --release 0.1.3 --out found.json`.
"""

import argparse
import logging
import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

from rlvr_debug.errors import InputError
from rlvr_debug.processes import run_main


def main() -> None:
    known = sorted(file.parent.name for file in Path(__file__).parent.glob("*/case.py"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--package", default="verifiers", choices=known)
    parser.add_argument("--release", required=True, help="the version that must be installed here")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--temperature", type=float, default=1.0, help="of sampling")
    parser.add_argument(
        "--wheel-folder",
        type=Path,
        help="an unpacked wheel to run in the place of the installed one",
    )
    args = parser.parse_args()
    if args.wheel_folder:
        if not (args.wheel_folder / args.package).is_dir():
            raise InputError(
                f"{args.wheel_folder}: found no folder '{args.package}', expected a wheel's"
            )
        sys.path.insert(0, str(args.wheel_folder.resolve()))
    # before tqdm is imported: no progress bars. Nor what the trainer says of its data
    os.environ |= {"TQDM_DISABLE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    logging.disable(logging.WARNING)
    try:
        from lab.probes import readable
        from lab.releases.report import probe_release

        case_of = import_module(f"lab.releases.{args.package}.case").release_case
    except ImportError as error:
        raise InputError(
            f"{sys.executable}: {error}, expected the environment of {args.package} {args.release}"
        ) from None
    case_at = partial(case_of, temperature=args.temperature)
    report = probe_release(args.package, args.release, case_at, args.out)
    print(f"{report.release}: {', '.join(report.files)}")
    print("\n".join(map(readable, report.measurements.values())))
    print("\n".join(f"{probe}: not run\n    why: {why}" for probe, why in report.not_run.items()))


if __name__ == "__main__":
    run_main(main)
