"""The study that diagnose writes of what was ranked, and what it costs at the log's own pace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlvr_debug.causes import hypothesis_names
from rlvr_debug.checkout import ROOT
from rlvr_debug.diagnosis.rank import diagnose_log
from rlvr_debug.errors import InputError
from rlvr_debug.study.diagnosed import overlay_text, write_overlay, write_study
from rlvr_debug.study.params import load_params
from tests.test_diagnose import healthy, log_of, rows_of


def test_the_cost_is_that_of_the_studys_runs_at_the_logs_own_pace(tmp_path: Path) -> None:
    run = {**healthy(0), "truncated": np.full(40, 1.0), "seconds": np.full(40, 90.0)}
    found = diagnose_log(log_of(rows_of(run)), gpus=4)
    assert found.timing.hours == pytest.approx(40 * 90 * 4 / 3600)
    # case, random rewards and the repair on three seeds, the control and the case's defect alone on five
    assert write_study(found, 1, "trl", tmp_path / "one.yaml").endswith(
        f"a study of {19 * 4:.2g} GPU-hours (19 runs of this length)"
    )
    del run["seconds"]
    untimed = diagnose_log(log_of(rows_of(run)))
    said = write_study(untimed, 1, "trl", tmp_path / "other.yaml")
    assert "19 runs of this length (no seconds per step are logged" in said


@pytest.mark.parametrize("trainer", ["trl", "command"])
@pytest.mark.parametrize("slug", hypothesis_names())
def test_the_overlay_of_every_hypothesis_is_a_valid_study(
    slug: str, trainer: str, tmp_path: Path
) -> None:
    log = log_of(rows_of({**healthy(0), "learning_rate": np.zeros(40)}))
    params = write_overlay(overlay_text(log, [slug], trainer), tmp_path / "study.yaml")
    assert list(params.arms) == [slug]
    assert params.trainer == trainer
    assert params.cases["mine"].training["learning_rate"] == 0


def test_an_overlay_is_never_written_over_another_file(tmp_path: Path) -> None:
    text = overlay_text(log_of(rows_of(healthy(0))), ["kl-penalty"], "trl")
    path = tmp_path / "mine.yaml"
    write_overlay(text, path)
    load_params(ROOT / "params.yaml", path)
    with pytest.raises(InputError, match=r"mine\.yaml: the file exists"):
        write_overlay("study: other\n", path)
    assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]
