"""DVC's plots of the training curves, by the template and the page of this project."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import vl_convert

from rlvr_debug.report.charts import write_viewer

ROOT = Path(__file__).parents[1]
SEEDS, STEPS = (0, 1), (1, 2, 3)


@pytest.fixture
def dvc(tmp_path: Path) -> Path:
    """A DVC repository with curves of two arms; of seed 1 the reward is higher by 0.2."""
    curves = [
        f"{arm},case,musique,{seed},{step},{reward + 0.2 * seed:.1f},0,1"
        for arm, reward in (("case", 0.1), ("control", 0.5))
        for seed in SEEDS
        for step in STEPS
    ]
    header = "arm,design,environment,seed,step,reward,kl,grad_norm"
    table = tmp_path / "results" / "tables" / "curves.csv"
    table.parent.mkdir(parents=True)
    table.write_text("\n".join([header, *curves, ""]), encoding="utf-8")
    run(tmp_path, "init", "--no-scm", "--quiet")
    shutil.copytree(ROOT / ".dvc" / "plots", tmp_path / ".dvc" / "plots")
    shutil.copy2(ROOT / "dvc.yaml", tmp_path)
    return tmp_path


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "dvc", *arguments]
    environment = {**os.environ, "DVC_NO_ANALYTICS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.heavy
def test_the_template_draws_a_line_per_arm_the_mean_over_seeds(dvc: Path) -> None:
    said = run(dvc, "plots", "show", "--show-vega", "results/tables/curves.csv")
    spec = json.loads(said)
    assert "DVC_METRIC" not in said
    drawn = vl_convert.vegalite_to_svg(spec)
    assert all(f">{arm}</text>" in drawn for arm in ("case", "control"))
    # a line is labelled by its first point
    lines = re.findall(r'"step: 1; reward, mean over seeds: ([0-9.]+); rev: workspace"', drawn)
    assert sorted({round(float(reward), 6) for reward in lines}) == [0.2, 0.6]


def test_the_page_draws_without_a_network(dvc: Path) -> None:
    write_viewer(dvc / "viewer.html")
    run(dvc, "plots", "show", "--html-template", "viewer.html", "--out", "plots")
    page = (dvc / "plots" / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script[^>]*\ssrc|<link", page)
    assert "vegaEmbed('#" in page
    assert page.index("window.vegaEmbed") < page.index("vegaEmbed('#")
    assert "{plot_divs}" not in page
