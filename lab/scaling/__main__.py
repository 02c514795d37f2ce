"""Print what GPUs a study would take, by formula; nothing of a study of the shipped model.

Run it as `python -m lab.scaling --overlay studies/qwen2.5-7b.yaml`.
"""

import argparse
from pathlib import Path

from lab.scaling.plan import gpu_lines
from rlvr_debug.checkout import ROOT
from rlvr_debug.processes import run_main
from rlvr_debug.study.folder import study_folder
from rlvr_debug.study.params import study_params
from rlvr_debug.study.plan import is_real
from rlvr_debug.study.running import jobs_to_do, snakemake_command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--overlay", type=Path, help="a study's parameters, over params.yaml")
    parser.add_argument("--all", action="store_true", help="every phase, whatever one finds")
    args = parser.parse_args()
    params = study_params(args.overlay, args.all)
    if not is_real(params):
        return
    folder = study_folder(params, args.overlay)
    to_do = jobs_to_do(folder, snakemake_command(folder, args.overlay, args.all))
    print("\n".join(gpu_lines(params, to_do.get("train", 0), ROOT)))


if __name__ == "__main__":
    run_main(main)
