"""Build the tiny base model and, if asked to, compare it with another one.

Run it as `python -m lab.model.build --params params.yaml --out results/model --compare models/tiny`.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Config

from lab.model.tokenizer import build_tokenizer, rename_for_older
from lab.model.warmup import Lessons, WarmupSettings, warm_up
from rlvr_debug.data.rows import Row
from rlvr_debug.environments import build_environment, task_of
from rlvr_debug.environments.base import Environment
from rlvr_debug.errors import InputError
from rlvr_debug.evaluation import evaluate
from rlvr_debug.models.base_model import load_weights, model_config, save_weights
from rlvr_debug.processes import run_main
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.study.params import load_params

_HELDOUT_SEED = 7  # its rows judge the warm-up; no study's data has this seed
_HELDOUT_ROWS = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--params", type=Path, required=True, help="data and environments")
    parser.add_argument("--seed", type=int, default=2, help="2: the shipped model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--compare", type=Path, help="a model whose held-out rewards to show beside"
    )
    args = parser.parse_args()
    report = build_model(args.params, args.seed, args.out, args.compare)
    print(json.dumps(report, indent=2))


def build_model(params_file: Path, seed: int, out: Path, compare: Path | None) -> dict[str, Any]:
    """Write config, weights (bfloat16) and tokenizer to `out`; return what was measured."""
    torch.set_num_threads(1)
    params = load_params(params_file)
    for name, settings in params.data.items():
        if settings.source != "synthetic":
            raise InputError(
                f"{params_file}: key 'data.{name}.source' must be synthetic to warm up"
            )

    def rows(name: str, count: int, data_seed: int) -> list[Row]:
        settings = {**params.data_settings(name), "rows": count, "heldout": 0, "seed": data_seed}
        return list(task_of(name).synthetic(settings))

    environments = {
        name: build_environment(name, params.settings(name)) for name in ("musique", "gsm8k")
    }
    heldout = {name: rows(name, _HELDOUT_ROWS, _HELDOUT_SEED) for name in environments}
    build_tokenizer().save_pretrained(out)
    chat = Chat(out)
    started = time.perf_counter(), time.process_time()
    lessons = Lessons(chat, environments, rows, heldout)
    progress = functools.partial(print, file=sys.stderr)
    config, weights = warm_up(lessons, WarmupSettings(), seed, progress)
    seconds = time.perf_counter() - started[0], time.process_time() - started[1]
    save_model(config, weights, out)
    report: dict[str, Any] = {"seconds": round(seconds[0]), "cpu_seconds": round(seconds[1])}
    report["built"] = _measure(out, environments, heldout)
    if compare:
        report["compared"] = _measure(compare, environments, heldout)
    return report


def save_model(config: Qwen2Config, weights: Mapping[str, Tensor], out: Path) -> None:
    """Write config and weights (bfloat16) beside the tokenizer that is there, for transformers 4.48 and later."""
    config.save_pretrained(out)
    rename_for_older(out)
    halves = {name: w.detach().to(torch.bfloat16) for name, w in weights.items()}
    save_weights(halves, out / "model.safetensors")


def rewards(
    rows: Sequence[Row], environment: Environment, chat: Chat, sampler: InProcessSampler
) -> dict[str, float]:
    """Return the mean held-out rewards, sampled and greedy."""
    found = evaluate(rows, environment, chat, sampler, temperature=1.0, seed=0)
    return {kind: round(found[kind]["reward"], 4) for kind in ("sampled", "greedy")}


def _measure(
    folder: Path, environments: Mapping[str, Environment], heldout: Mapping[str, list[Row]]
) -> dict[str, Any]:
    chat = Chat(folder)
    weights = load_weights(folder / "model.safetensors")
    sampler = InProcessSampler(model_config(folder), weights, chat.ends)
    measured: dict[str, Any] = {"bytes": sum(f.stat().st_size for f in folder.iterdir())}
    for name, environment in environments.items():
        measured[name] = rewards(heldout[name], environment, chat, sampler)
    return measured


if __name__ == "__main__":
    run_main(main)
