"""Copies of the project, in which commands are run as a user would run them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import ran

ROOT = Path(__file__).parents[1]
LOG = ROOT / "tests" / "logs" / "zero-rate"


def project(folder: Path) -> Path:
    """A git repository of the project with some commits, its environment, and what a user might have."""
    listed = ran(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT)
    if listed.returncode:
        pytest.skip("the checkout is no git repository: which files are the project's is not known")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    setup = """
        git init -q && git config user.name some && git config user.email some@one
        git add . && git commit -qm project
        python -m compileall -q src
        for n in 1 2 3 4 5; do git commit -q --allow-empty -m "$n"; done
        git repack -adq  # one file in place of a thousand, in each copy
        mkdir .venv && ln -s "$PREFIX"/* .venv/
        touch .venv/.train-$(cat envs/train.txt pyproject.toml | cksum | tr -d ' ')
        touch .venv/.test-$(cat envs/train.txt envs/test.txt | cksum | tr -d ' ')
        mkdir -p checkpoint-500 outputs/my-run
        for folder in checkpoint-500 outputs/my-run; do cp "$LOG/trainer_state.json" $folder; done
    """
    given = {"PREFIX": sys.prefix, "LOG": str(LOG)}
    subprocess.run(
        ["bash", "-ec", setup], cwd=folder, env={**environment(folder), **given}, check=True
    )
    (folder / "train.log").write_text(_printed("schedule-ended"), encoding="utf-8")
    # else it would install into the environment that the tests run in
    assert "pip" not in dry("docs", folder) + dry("plan", folder)
    return folder


def again(copied: Path, place: Path) -> Path:
    """Return another copy of it; Python's own would take five times as long."""
    subprocess.run(["cp", "-a", str(copied), str(place)], check=True)
    return place


def _printed(name: str) -> str:
    """What a run of tests/logs printed while it ran: a dictionary of texts for each row."""
    state = json.loads((ROOT / "tests" / "logs" / name / "trainer_state.json").read_text("utf-8"))
    rows = (
        {key: f"{row[key]:.4g}" for key in row if key != "step"} for row in state["log_history"]
    )
    return "".join(f"{row}\n" for row in rows)


def environment(root: Path) -> dict[str, str]:
    """Nothing of whoever runs the tests, and nothing written there."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SNAKEMAKE", "MAKE", "MFLAGS", "GIT_", "OVERLAY", "PYTEST"))
    }
    nowhere = str(root.parent / "settings")
    return {
        **kept,
        "PATH": os.pathsep.join([str(root / ".venv" / "bin"), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)]),
        "OMP_NUM_THREADS": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        **dict.fromkeys(("DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR"), nowhere),
        "DVC_SITE_CACHE_DIR": nowhere,
        "HF_HUB_OFFLINE": "1",
    }


def call(command: str, root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=root,
        env=environment(root),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=600,
    )


def dry(target: str, root: Path) -> str:
    """What make would run."""
    done = call(f"make -n {target}", root)
    assert done.returncode == 0, done.stdout
    return done.stdout
