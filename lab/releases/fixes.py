"""Patch a copy of a release of verifiers: fixes/<release>/*.patch, all of them or some.

Run it as `python -m lab.releases.fixes --wheel FILE --out patched`.
"""

import argparse
from pathlib import Path

from rlvr_debug.processes import run_main
from rlvr_debug.trainers.verifiers.fixes import apply_fixes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--wheel", type=Path)
    source.add_argument("--unpacked", type=Path, help="a folder that holds the package")
    parser.add_argument("--out", type=Path, required=True, help="a folder to be made")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    args = parser.parse_args()
    applied = apply_fixes(args.wheel or args.unpacked, args.out, args.only or None)
    print(f"{args.out}: {', '.join(applied)}")


if __name__ == "__main__":
    run_main(main)
