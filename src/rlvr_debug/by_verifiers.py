"""Held-out evaluation by verifiers' own harness, vf-eval, beside ours: the same model on the same server, the same rows.

Rows are asked greedily. The environment scores both, so that equal replies earn the same: but for the last bit, where weights
are added in another order. Rewards that differ by more are of other replies.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlvr_debug.data.prepare import read_rows
from rlvr_debug.environments.settings import OURS_ALONE
from rlvr_debug.errors import InputError, short
from rlvr_debug.files import read_json, read_jsonl, read_table, write_csv, write_json
from rlvr_debug.jobs import Evaluation
from rlvr_debug.processes import guarded, last_line, variables_apart
from rlvr_debug.serving.process import Endpoint, read_endpoint, wait_until_ready
from rlvr_debug.venvs import python_of, settings_of_pip

# of envs/
VENV = "verifiers"
# of a study's results
TABLE = Path("tables", "verifiers.csv")
_KEY = "VLLM_API_KEY"
_RUN = "run"
_LAST_BIT = 1e-9


@dataclass(frozen=True)
class Both:
    """What one row earned: in our evaluation, and in that of verifiers."""

    row: str
    hops: int
    reward: float
    verifiers: float
    same: bool


def evaluate_by_verifiers(job: Evaluation, count: int, out: Path) -> None:
    """Evaluate the first `count` held-out rows by vf-eval on a shared server, and write what each earned to a JSON file, by its id."""
    rows = read_rows(job.environment, job.rows)
    if len(rows) < count:
        raise InputError(
            f"{job.rows}: has {len(rows)} rows, expected {count} (evaluation.verifiers_rows)"
        )
    assert job.sampling.endpoint is not None
    endpoint = read_endpoint(job.sampling.endpoint)
    wait_until_ready(endpoint)
    with TemporaryDirectory() as folder:
        lines = _vf_eval(_config(job, count, endpoint, Path(folder)), endpoint, Path(folder))
    write_json(out, rewards_of(lines, [row.id for row in rows[:count]]))


def compare_evaluations(job: Evaluation, ours: Path, verifiers: Path, out: Path) -> None:
    """Write what each row earned in both evaluations to a CSV file. verifiers: what evaluate_by_verifiers wrote."""
    theirs, rows = read_json(verifiers), read_rows(job.environment, job.rows)
    found = [
        (row, own, theirs[row.id])
        for row, own in zip(rows, read_json(ours)["greedy"]["rewards"], strict=True)
        if row.id in theirs
    ]
    both = (Both(r.id, r.hops, own, its, abs(own - its) <= _LAST_BIT) for r, own, its in found)
    write_csv(out, Both, both)


def _config(job: Evaluation, count: int, endpoint: Endpoint, folder: Path) -> dict[str, Any]:
    """Return what vf-eval is told, as it calls it. The taskset reads the study's own splits."""
    splits = {
        key: str(job.rows.with_name(f"{name}.jsonl").resolve())
        for key, name in (("path", "train"), ("heldout_path", "heldout"))
    }
    task = {key: value for key, value in job.settings.items() if key not in OURS_ALONE}
    return {
        "env": {
            "taskset": {
                "id": f"rlvr-debug-{job.environment}",
                "split": "heldout",
                "source": "jsonl",
                "seed": 0,
                "task": task,
                **splits,
            }
        },
        "select": {"limit": count},
        "model": endpoint.model,
        "client": {"base_url": f"{endpoint.url}/v1", "api_key_var": _KEY},
        "sampling": {"temperature": 0.0, "max_tokens": job.settings["max_new_tokens"]},
        "max_concurrent": 2,
        "output_dir": str(folder),
        "run": {"name": _RUN},
        # nothing is uploaded
        "push": False,
        "rich": None,
    }


def _vf_eval(config: dict[str, Any], endpoint: Endpoint, folder: Path) -> list[dict[str, Any]]:
    """Run it, and return the lines that it writes of its episodes. Raise InputError where it fails."""
    write_json(folder / "config.json", config)
    python, log = python_of(VENV), folder / "vf-eval.log"
    found = os.environ.get("PATH", os.defpath)
    variables = {
        **settings_of_pip(),
        **variables_apart(),
        # uv starts the harness, with packages that it fetches once
        "PATH": f"{python.parent.absolute()}{os.pathsep}{found}",
        _KEY: endpoint.key,
    }
    argv = [str(python.with_name("vf-eval")), "@", str(folder / "config.json")]
    with guarded(argv, log, variables) as process:
        status = process.wait()
    traces = folder / _RUN / "traces.jsonl"
    if status or not traces.is_file():
        raise InputError(f"vf-eval ended with status {status}: {last_line(log)}")
    return [line for _, line in read_jsonl(traces)]


def rewards_of(lines: Iterable[dict[str, Any]], rows: Sequence[str]) -> dict[str, float]:
    """Return the reward of each row by its id, from the lines of vf-eval's traces.jsonl; raise InputError for a row without one or with an error."""
    found: dict[str, float] = {}
    for trace in (trace for line in lines for trace in line["traces"]):
        row = trace["task"]["data"]["row"]["id"]
        if trace["errors"]:
            raise InputError(f"vf-eval: row {short(row)}: {short(json.dumps(trace['errors'][0]))}")
        found[row] = sum(each["score"] * each["weight"] for each in trace["rewards"].values())
    if missing := [row for row in rows if row not in found]:
        raise InputError(f"vf-eval: no reward for row {short(missing[0])}, expected one a row")
    return {row: found[row] for row in rows}


def agreement(results: Path) -> Iterator[str]:
    """Yield on how many rows of a study both earned the same, and a line for each other; nothing where it asked for none."""
    if not read_json(results / "study.json")["params"]["evaluation"].get("verifiers_rows"):
        return
    table = results / TABLE
    rows = read_table(table).to_dict("records")
    same = sum(row["same"] for row in rows)
    yield f"verifiers' own evaluation: {same} of {len(rows)} greedy rows earn the same reward as in ours ({table})"
    for row in rows:
        if not row["same"]:
            yield f"  {row['row']}: {row['reward']:.3f} in ours, {row['verifiers']:.3f} in verifiers'"
