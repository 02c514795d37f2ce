"""Jobs take the kernels that most processors have, so that those with more instructions give the same bytes."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr_debug.study.digests import pin_kernels
from tests.shared import ran

ATEN, ONEDNN = "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"
AVX2 = "flags\t\t: fpu avx avx2 avx512f\n"
NO_AVX2 = "flags\t\t: fpu avx\nbugs : avx2_is_not_here\n"
NO_AMX = "AVX512_CORE_FP16"


@pytest.mark.parametrize(
    ("processor", "theirs", "pinned"),
    [
        (AVX2, {}, {ATEN: "avx2", ONEDNN: NO_AMX}),
        (NO_AVX2, {}, {}),
        (None, {}, {}),
        (AVX2, {ATEN: "avx512"}, {}),
        (AVX2, {ATEN: "default"}, {ONEDNN: NO_AMX}),
        (NO_AVX2, {ATEN: "avx2"}, {ONEDNN: NO_AMX}),
        (AVX2, {ONEDNN: "AVX2"}, {ATEN: "avx2"}),
        (AVX2, {ONEDNN: "avx512_core"}, {ATEN: "avx2"}),
        (AVX2, {ONEDNN: ""}, {ATEN: "avx2", ONEDNN: NO_AMX}),
        # both may have AMX, the second because oneDNN ignores what it does not know
        (AVX2, {ONEDNN: "AVX512_CORE_AMX"}, {}),
        (AVX2, {ONEDNN: "AVX3"}, {}),
    ],
)
def test_kernels_are_those_for_avx2_without_amx_unless_somebody_says_otherwise(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processor: str | None,
    theirs: dict[str, str],
    pinned: dict[str, str],
) -> None:
    for name in (ATEN, ONEDNN):
        monkeypatch.delenv(name, raising=False)
    for name, value in theirs.items():
        monkeypatch.setenv(name, value)
    if processor is not None:
        (tmp_path / "cpuinfo").write_text(f"processor : 0\n{processor}", encoding="utf-8")
    pin_kernels(tmp_path / "cpuinfo")
    assert {name: os.environ[name] for name in (ATEN, ONEDNN) if name in os.environ} == {
        **theirs,
        **pinned,
    }


def said(statements: str, **variables: str) -> str:
    """Return the last line that a Python with these variables prints, standard error included."""
    kept = {name: value for name, value in os.environ.items() if name not in (ATEN, ONEDNN)}
    done = subprocess.run(
        [sys.executable, "-c", f"from tests.test_same_bytes import *\n{statements}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**kept, **variables},
        check=False,
    )
    return (done.stdout.strip().splitlines() or [f"ended with {done.returncode}"])[-1]


def test_torch_computes_with_the_kernels_that_jobs_are_told() -> None:
    if "avx2" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        pytest.skip("this processor has no AVX2")
    asked = "pin_kernels(); import torch; print(torch.backends.cpu.get_cpu_capability())"
    assert said(asked) == "AVX2"


def play_amx() -> None:
    """Have torch's oneDNN take this processor for one with AMX: what it computes with that ends the process."""
    import torch

    if torch.cpu._is_amx_tile_supported():
        return
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    lines = ran(["nm", library], check=True).stdout
    place = {line.split()[-1]: line.split()[0] for line in lines.splitlines() if "x643" in line}
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    start = int(next(line for line in maps if line.endswith(str(library))).split("-")[0], 16)
    # the system lets programs use it: mov eax, 1; ret
    allowed = start + int(place["_ZN4dnnl4impl3cpu3x643amx12is_availableEv"], 16)
    page = ctypes.c_void_p(allowed & -4096)
    assert ctypes.CDLL(None).mprotect(page, ctypes.c_size_t(8192), 7) == 0
    ctypes.memmove(allowed, b"\xb8\x01\x00\x00\x00\xc3", 6)
    # the processor has all that the first 64 flags stand for
    processor = start + int(place["_ZN4dnnl4impl3cpu3x643cpuEv"], 16)
    ctypes.memmove(ctypes.CFUNCTYPE(ctypes.c_void_p)(processor)(), b"\xff" * 8, 8)


def attend() -> str:
    """Return what torch says of attention in bfloat16 and its gradient, in a size for which it packs."""
    import torch

    if not torch.cpu._is_avx512_bf16_supported():
        return "skipped"
    try:
        play_amx()
    except (OSError, KeyError, AssertionError, subprocess.CalledProcessError) as error:
        return f"skipped: {error!r}"
    x = torch.ones(2, 4, 256, 64, dtype=torch.bfloat16, requires_grad=True)
    try:
        found = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        torch.autograd.grad(found.sum(), x)
    except RuntimeError as error:
        return str(error)
    return "computed"


@pytest.mark.parametrize(
    ("statements", "theirs", "expected"),
    [
        ("pin_kernels()", {}, "computed"),
        ("pin_kernels()", {ATEN: "default"}, "computed"),
        # what `pin_kernels` is for: once this is computed, oneDNN can have AMX
        ("pass", {ATEN: "avx2"}, "pack_vnni2 is only supported when avx512 is supported"),
    ],
)
def test_jobs_compute_attention_in_bfloat16_on_a_processor_with_amx(
    statements: str, theirs: dict[str, str], expected: str
) -> None:
    """With AMX, torch's kernels for AVX2 raised: each study and each check in bfloat16 ended there."""
    answer = said(f"{statements}; print(attend())", **theirs)
    if answer.startswith("skipped"):
        pytest.skip(f"AMX cannot be played here: {answer}")
    assert answer.startswith(expected)
