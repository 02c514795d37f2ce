"""What pins the bytes of a training between processors, and what each setting costs.

    python -m benchmarks.same_bytes [--repeats 3]

Trains the default study's control for eight steps on one core, with settings of the libraries that compute. `as` is the
machine that is played: the same one, or one of fewer instructions, as far as the libraries can be told to leave
instructions out. A setting pins the bytes between two machines where the digests of their weights are equal.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare
from rlvr_debug.files import sha256
from rlvr_debug.study.params import load_params
from rlvr_debug.study.resolved import resolve, write_study

AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD",
}
SSE = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX,-FMA,-FMA4",
}
MACHINES: dict[str, dict[str, str]] = {"itself": {}, "AVX2": AVX2, "SSE4": SSE}
ATEN = {"ATEN_CPU_CAPABILITY": "default"}
SETTINGS: dict[str, dict[str, str]] = {
    "nothing": {},
    "ATEN_CPU_CAPABILITY=avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "ATEN_CPU_CAPABILITY=default": ATEN,
    "ONEDNN_MAX_CPU_ISA=AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "MKL_CBWR=AVX2": {"MKL_CBWR": "AVX2"},
    "MKL_CBWR=COMPATIBLE": {"MKL_CBWR": "COMPATIBLE"},
    "MKL and ATen, AVX2": {"MKL_CBWR": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "MKL and ATen, least": {"MKL_CBWR": "COMPATIBLE", **ATEN},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _study(folder)
        usual = 0.0
        print(f"{'setting':<28} {'as':<8} {'digest':<10} CPU seconds (range)")
        for setting, pinned in SETTINGS.items():
            for machine, played in MACHINES.items():
                # times of this machine are what a setting costs here
                count = args.repeats if machine == "itself" else 1
                found = [_train(folder, {**played, **pinned}) for _ in range(count)]
                digests, seconds = {each[0] for each in found}, [each[1] for each in found]
                usual = usual or median(seconds)
                cost = f"{median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
                more = f"{100 * (median(seconds) / usual - 1):+.0f} %" if count > 1 else ""
                print(
                    f"{setting:<28} {machine:<8} {'/'.join(sorted(digests)):<10} {cost} {more}",
                    flush=True,
                )


def _study(folder: Path) -> None:
    params = load_params(ROOT / "params.yaml")
    params = replace(params, training=replace(params.training, steps=8, save_steps=0))
    prepare("musique", params.data_settings("musique"), folder / "data" / "splits" / "musique")
    write_study(resolve(params, ROOT), folder / "results" / "study.json")


def _train(folder: Path, variables: dict[str, str]) -> tuple[str, float]:
    """Return eight digits of the weights' digest, and the processor seconds of the training with its start."""
    study, out = folder / "results" / "study.json", folder / "out"
    words = [sys.executable, str(ROOT / "scripts" / "train.py"), "--study", str(study)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [*words, "--run", "musique/control/0", "--out", str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return sha256(out / "model.safetensors")[:8], seconds


if __name__ == "__main__":
    main()
