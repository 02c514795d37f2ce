"""Jobs take the kernels that most processors have, so that those with more instructions give the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr_debug.study.jobs import pin_kernels

NAME = "ATEN_CPU_CAPABILITY"


@pytest.fixture
def cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of a processor with AVX2 and more."""
    monkeypatch.delenv(NAME, raising=False)
    path = tmp_path / "cpuinfo"
    path.write_text("processor : 0\nflags\t\t: fpu avx avx2 avx512f\n", encoding="utf-8")
    return path


def test_a_processor_with_avx2_is_told_to_take_its_kernels_and_no_wider_ones(cpus: Path) -> None:
    pin_kernels(cpus)
    assert os.environ[NAME] == "avx2"


def test_a_processor_without_avx2_and_a_setting_of_the_user_s_are_let_alone(cpus: Path) -> None:
    cpus.write_text("flags\t\t: fpu avx\nbugs : avx2_is_not_here\n", encoding="utf-8")
    pin_kernels(cpus)
    pin_kernels(cpus.with_name("none"))
    assert NAME not in os.environ
    os.environ[NAME] = "default"
    cpus.write_text("flags\t\t: fpu avx avx2\n", encoding="utf-8")
    pin_kernels(cpus)
    assert os.environ[NAME] == "default"


def test_torch_computes_with_the_kernels_that_jobs_are_told() -> None:
    if "avx2" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        pytest.skip("this processor has no AVX2")
    code = (
        "from rlvr_debug.study.jobs import pin_kernels; pin_kernels()\n"
        "import torch; print(torch.backends.cpu.get_cpu_capability())"
    )
    variables = {key: value for key, value in os.environ.items() if key != NAME}
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=True
    )
    assert said.stdout.strip() == "AVX2"
