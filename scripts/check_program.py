"""Run a study's case for one step, by a trainer that is not ours, and check what it writes."""

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

from rlvr_debug.arms import runs
from rlvr_debug.config import ROOT, load_params
from rlvr_debug.data.prepare import prepare, rooted
from rlvr_debug.errors import InputError, run_main
from rlvr_debug.models.places import base_model_of
from rlvr_debug.trainers.program import program_of, record
from rlvr_debug.venvs import build_venv, venvs_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--overlay", type=Path, required=True, help="the study's parameters")
    args = parser.parse_args()
    params = load_params(ROOT / "params.yaml", args.overlay)
    if params["trainer"] == "own":
        raise InputError(f"{args.overlay}: key 'trainer' is own, expected trl or command")
    for name in venvs_of(params["trainer"], params["command"]):
        build_venv(name)
    run = next(runs(params))
    run = replace(run, training=replace(run.training, steps=1))
    place = ROOT / ".run" / "check-program"
    shutil.rmtree(place, ignore_errors=True)
    prepare(run.environment, rooted(params["data"][run.environment], ROOT), place)
    found = record(
        run,
        params["environments"][run.environment],
        ROOT / base_model_of(params, run.environment).folder,
        place / "train.jsonl",
        place,
        program_of(params["trainer"], params["command"]),
        rollouts_every=1,
        rollouts_kept=0,
    )
    known = sorted({key for row in found.rollouts for key in row})
    print(f"one step in {found.seconds:.1f} s: metrics.jsonl and weights are as they should be")
    print(f"rollouts.jsonl: {len(found.rollouts)} rollouts with {', '.join(known) or 'nothing'}")


if __name__ == "__main__":
    run_main(main)
