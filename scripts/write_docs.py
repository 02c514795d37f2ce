"""Write those parts of the pages in docs/ that are made from the code."""

import argparse

from rlvr_debug.config import ROOT
from rlvr_debug.errors import run_main
from rlvr_debug.files import write_text
from rlvr_debug.reporting.pages import PAGES, written


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for name in PAGES:
        page = ROOT / "docs" / name
        write_text(page, written(page))
        print(page)


if __name__ == "__main__":
    run_main(main)
