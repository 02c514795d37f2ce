"""DVC's plots in a page with the viewer inside: it needs no network."""

from __future__ import annotations

import sys
from pathlib import Path

import jinja2

from rlvr_debug.checkout import ROOT
from rlvr_debug.files import write_text
from rlvr_debug.processes import output_of
from rlvr_debug.report.charts import vega_script

_PAGE = Path(__file__).with_name("templates") / "plots.html.j2"


def write_viewer(path: Path) -> None:
    """Write a template for `dvc plots --html-template`, with Vega's own scripts, which vl-convert has."""
    page = jinja2.Template(_PAGE.read_text(encoding="utf-8"), keep_trailing_newline=True)
    write_text(path, page.render(script=vega_script()))


def draw_plots(rev: str | None) -> Path:
    """Let DVC draw the plots of the working tree, beside those of a revision; return the page.

    Raises InputError with the last line of what DVC says, where it fails.
    """
    template, out = Path(".dvc", "tmp", "viewer.html"), Path("results", "plots")
    write_viewer(ROOT / template)
    which = ["diff", rev] if rev else ["show"]
    words = ["plots", *which, "--html-template", str(template), "--out", str(out)]
    output_of([sys.executable, "-m", "dvc", *words], "dvc plots", ROOT)
    return ROOT / out / "index.html"
