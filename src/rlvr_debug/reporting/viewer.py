"""The page that DVC draws its plots in, with the viewer inside: it needs no network."""

from __future__ import annotations

from pathlib import Path

import vl_convert

from rlvr_debug.files import write_text

__all__ = ["write_viewer"]

_PAGE = """<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<title>Plots</title>
<script>%s</script>
</head>
<body>
{plot_divs}
</body>
</html>
"""


def write_viewer(path: Path) -> None:
    """An HTML template for `dvc plots --html-template`, with Vega's own scripts, which vl-convert has."""
    write_text(path, _PAGE % vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
