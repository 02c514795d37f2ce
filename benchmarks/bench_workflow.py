"""What the workflow itself costs: a run with nothing to do, the dry run of a large study, and each job's share.

    python -m benchmarks.bench_workflow    # after `make run` and `make smoke`

Nothing is trained. For the share of a job the smoke study is run again on one core, in a copy of the project
whose scripts copy what that study has: of the time, what is left beside the scripts' own is Snakemake's.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import yaml

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.processes import run_main
from rlvr_debug.study.arms import runs
from rlvr_debug.study.folder import events_to
from rlvr_debug.study.params import load_params

_TIMES = 5
_RUNS = 1000
_SMOKE = ROOT / "studies" / "smoke.yaml"
_STAND_IN = """
import shutil, sys
from pathlib import Path
out = Path(sys.argv[sys.argv.index("--out") + 1])
done = Path({finished!r}) / out
out.parent.mkdir(parents=True, exist_ok=True)
if done.is_file():
    shutil.copyfile(done, out)
else:
    for file in filter(Path.is_file, done.iterdir()):
        shutil.copyfile(file, out / file.name)
"""


def main() -> None:
    smoke = ROOT / "studies" / "smoke"
    for needed, command in ((ROOT, "make run"), (smoke, "make smoke")):
        # git has the report, and no run
        if not (needed / "results" / "runs").is_dir():
            raise InputError(f"{needed}/results: no finished study, expected that of `{command}`")
    _print("make run, nothing to do", *_timed(["make", "run"], "nothing to do"))
    _print("dvc repro, nothing to do", *_timed([_program("dvc"), "repro"], "up to date"))
    with tempfile.TemporaryDirectory() as folder:
        _print(*_large(Path(folder)))
    with tempfile.TemporaryDirectory() as folder:
        _print(*_overhead(Path(folder), smoke))


def _print(what: str, seconds: float, more: str = "") -> None:
    print(f"{what:<58}{seconds:7.2f} s{more}", flush=True)


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _run(command: list[str], folder: Path = ROOT, **variables: str) -> tuple[float, str]:
    """Wall seconds, and what it said."""
    begin = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise InputError(f"{' '.join(command)}: {(done.stderr or done.stdout).splitlines()[-1]}")
    return time.perf_counter() - begin, done.stdout + done.stderr


def _timed(command: list[str], expected: str) -> tuple[float]:
    """The median of some runs, all of which say what is expected."""
    seconds = []
    for _ in range(_TIMES):
        taken, said = _run(command)
        if expected not in said:
            raise InputError(f"{' '.join(command)}: found work to do, expected '{expected}'")
        seconds.append(taken)
    return (median(seconds),)


def _copy(folder: Path, overlay: Mapping[str, object]) -> list[str]:
    """The project without results; returns the command that runs this overlay's study in it."""
    for part in ("params.yaml", "workflow", "scripts", "src", "models", "envs"):
        place = ROOT / part
        (shutil.copytree if place.is_dir() else shutil.copy2)(place, folder / part)
    (folder / "overlay.yaml").write_text(yaml.safe_dump(dict(overlay)), encoding="utf-8")
    return [sys.executable, "-m", "rlvr_debug.cli", "run", "--overlay", "overlay.yaml"]


def _study(command: list[str], folder: Path, *passed_on: str) -> tuple[float, dict[str, int]]:
    """Run Snakemake by that command; return wall seconds, and the jobs that it had by rule and in total."""
    events = folder / "events"
    events.write_bytes(b"")
    words = [*command, "--", *passed_on, *events_to(str(events))]
    seconds, _ = _run(words, folder, PYTHONPATH="src")
    jobs: dict[str, int] = {}
    for event in map(json.loads, events.read_text(encoding="utf-8").splitlines()):
        jobs = event["stats"] if event["event"] == "run_info" else jobs
    return seconds, jobs


def _large(folder: Path) -> tuple[str, float, str]:
    default = load_params(ROOT / "params.yaml")
    trained = {run.trained_as for run in runs(default)}
    seeds = math.ceil(_RUNS / len(trained))
    command = _copy(folder, {"study": "large", "design": "fixed", "seeds": list(range(seeds))})
    dry = ("--dry-run", "--quiet", "rules")
    _, jobs = _study(command, folder, *dry)
    words = [*command, "--", *dry]
    seconds = median(_run(words, folder, PYTHONPATH="src")[0] for _ in range(_TIMES))
    return f"dry run, {jobs['train']} runs, {jobs['total']} jobs", seconds, ""


def _overhead(folder: Path, finished: Path) -> tuple[str, float, str]:
    command = _copy(folder, yaml.safe_load(_SMOKE.read_text(encoding="utf-8")))
    stand_in = _STAND_IN.format(finished=str(finished))
    for name in ("prepare_data", "train", "evaluate", "audit_rewards", "check_case"):
        (folder / "scripts" / f"{name}.py").write_text(stand_in, encoding="utf-8")
    smoke = runs(load_params(ROOT / "params.yaml", _SMOKE))
    places = sorted({f"results/runs/{r.environment}/{r.trained_as}/{r.seed}" for r in smoke})
    wanted = [f"{place}/heldout.json" for place in places]
    wanted += ["results/baseline/musique.json", "results/check.json"]
    seconds, jobs = _study([*command, "--cores", "1"], folder, *wanted)
    idle, again = _study([*command, "--cores", "1"], folder, *wanted)
    if again:
        raise InputError("the copy of the smoke study ran twice, expected nothing to do")
    script = folder / "scripts" / "check_case.py"
    alone = ["bash", "-c", f"{sys.executable} {script} --out results/check.json"]
    own = median(_run(alone, folder)[0] for _ in range(_TIMES))
    share = (seconds - idle) / jobs["total"] - own
    more = f"   {jobs['total']} jobs in {seconds:.1f} s; of these {idle:.1f} s to begin, {own:.2f} s a script"
    return "each job, beyond its script's own time", share, more


if __name__ == "__main__":
    run_main(main)
