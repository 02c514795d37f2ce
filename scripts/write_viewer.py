"""Write the page that DVC draws its plots in, with the viewer inside."""

import argparse
from pathlib import Path

from rlvr_debug.errors import run_main
from rlvr_debug.reporting.viewer import write_viewer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="an HTML template")
    write_viewer(parser.parse_args().out)


if __name__ == "__main__":
    run_main(main)
