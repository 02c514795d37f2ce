"""Check the components of a released trainer at step 0. Runs in that release's environment."""

import argparse
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rlvr_debug.errors import InputError, run_main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", default="verifiers", choices=("verifiers", "trl"))
    parser.add_argument("--release", required=True, help="the version that must be installed here")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--temperature", type=float, default=1.0, help="of sampling, in a release of trl"
    )
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
        from rlvr_debug.probes.base import readable
        from rlvr_debug.probes.release_report import ReleaseReport

        probe: Callable[[str, Path], ReleaseReport]
        if args.package == "trl":
            from rlvr_debug.probes.trl_release_case import probe_trl_release

            probe = partial(probe_trl_release, temperature=args.temperature)
        else:
            from rlvr_debug.probes.release_case import probe_release

            probe = probe_release
    except ImportError as error:
        raise InputError(
            f"{sys.executable}: {error}, expected the environment of {args.package} {args.release}"
        ) from None
    report = probe(args.release, args.out)
    print(f"{report.package} {report.version}: {', '.join(report.files)}")
    print("\n".join(map(readable, report.measurements)))
    print("\n".join(f"{probe}: not run\n    why: {why}" for probe, why in report.not_run.items()))


if __name__ == "__main__":
    run_main(main)
