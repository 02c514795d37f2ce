"""Snakemake: the command that runs a study, and what happens in it, as events of our logger plug-in."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_jsonl
from rlvr_debug.processes import output_of

PROFILES = ROOT / "workflow" / "profiles"


def profile(name: str) -> str:
    """Return what SNAKEMAKE_PROFILE has to be for one of workflow/profiles, or for a user's own by its path."""
    if name == "default":
        return "none"  # Snakemake finds that by itself, and adds others to it
    for place in (PROFILES / name, Path(name)):
        if place.is_file() or any(place.glob("*.yaml")):
            return str(place.resolve())
    known = ", ".join(sorted(path.name for path in PROFILES.iterdir()))
    raise InputError(f"profile {name!r}: expected {known}, or the path of a profile of your own")


def core_count(given: str) -> int:
    """Return how many cores a --cores means. Raises InputError for what is no number and not `all`."""
    if given == "all":
        return os.cpu_count() or 1
    if not given.isdecimal() or int(given) < 1:
        raise InputError(f"--cores: found '{given}', expected all or a number from 1")
    return int(given)


def snakemake_command(
    folder: Path, overlay: Path | None, every_phase: bool = False, cores: str | None = "all"
) -> list[str]:
    """Return the words that start Snakemake on this study; cores: None leaves them to profiles."""
    config = [f"overlay={os.path.relpath(overlay, folder)}"] if overlay else []
    config += ["phases=all"] if every_phase else []
    return [
        # --config takes all words up to the next option, so that it cannot stand last
        *(sys.executable, "-m", "snakemake", *(["--config", *config] if config else [])),
        *(["--cores", cores] if cores else []),
        *("--snakefile", str(ROOT / "workflow" / "Snakefile")),
        *("--directory", str(folder)),
    ]


def events_to(place: str) -> list[str]:
    """Return the options by which Snakemake writes its events, as lines of JSON, to a file or pipe."""
    return ["--logger", "rlvr-debug", "--logger-rlvr-debug-events", place]


def jobs_to_do(command: list[str]) -> dict[str, int]:
    """Return how many jobs of each rule this command would run now; later phases count once they are decided."""
    jobs: dict[str, int] = {}
    # no rules, no progress: the counts are all that is asked for
    for event in _dry_run([*command, "--quiet", "rules", "progress"]):
        if event["event"] == "run_info":
            jobs = event["stats"]
    return {rule: count for rule, count in jobs.items() if rule not in ("all", "total")}


def runs_to_do(command: list[str]) -> set[tuple[str, str]]:
    """Return rule and name (environment/arm/seed) of each training and its evaluation that would run now."""
    jobs = set()
    for event in _dry_run(command):
        if event["event"] == "job_info" and event["rule_name"] in ("train", "evaluate_run"):
            job = event["wildcards"]
            jobs.add((event["rule_name"], f"{job['environment']}/{job['arm']}/{job['seed']}"))
    return jobs


def _dry_run(command: list[str]) -> list[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        events = Path(folder, "events")
        events.touch()
        output_of([*command, "--dry-run", *events_to(str(events))], "snakemake --dry-run")
        return [event for _, event in read_jsonl(events)]
