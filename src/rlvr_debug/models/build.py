"""From params.yaml to the tiny base model's folder, with the figures it has to meet."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rlvr_debug.config import load_params
from rlvr_debug.data.prepare import synthetic_rows
from rlvr_debug.data.rows import Row
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Environment
from rlvr_debug.errors import InputError
from rlvr_debug.evaluation import evaluate
from rlvr_debug.models.base_model import load_weights, model_config, save_weights
from rlvr_debug.models.tokenizer import build_tokenizer
from rlvr_debug.models.warmup import WarmupSettings, warm_up
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.qwen2 import Qwen2Sampler

__all__ = ["build_model"]

_HELDOUT_SEED = 7  # its rows judge the warm-up; no study's data has this seed
_HELDOUT_ROWS = 256


def build_model(params_file: Path, seed: int, out: Path, compare: Path | None) -> dict[str, Any]:
    """Write config, weights (bfloat16) and tokenizer to `out`; return what was measured."""
    torch.set_num_threads(1)
    params = load_params(params_file)
    for name, settings in params["data"].items():
        if settings["source"] != "synthetic":
            raise InputError(
                f"{params_file}: key 'data.{name}.source' must be synthetic to warm up"
            )

    def rows(name: str, count: int, data_seed: int) -> list[Row]:
        settings = {**params["data"][name], "rows": count, "heldout": 0, "seed": data_seed}
        return list(synthetic_rows(name, settings))

    environments = {
        name: build_environment(name, params["environments"][name]) for name in ("musique", "gsm8k")
    }
    heldout = {name: rows(name, _HELDOUT_ROWS, _HELDOUT_SEED) for name in environments}
    build_tokenizer().save_pretrained(out)
    chat = Chat(out)
    started = time.perf_counter(), time.process_time()
    config, weights = warm_up(
        chat,
        environments,
        rows,
        heldout,
        WarmupSettings(),
        seed,
        lambda line: print(line, file=sys.stderr),
    )
    seconds = time.perf_counter() - started[0], time.process_time() - started[1]
    config.save_pretrained(out)
    save_weights(
        {name: w.to(torch.bfloat16) for name, w in weights.items()}, out / "model.safetensors"
    )
    report = {
        "seconds": round(seconds[0]),
        "cpu_seconds": round(seconds[1]),
        "built": _measure(out, environments, heldout),
    }
    if compare:
        report["compared"] = _measure(compare, environments, heldout)
    return report


def _measure(
    folder: Path, environments: Mapping[str, Environment], heldout: Mapping[str, list[Row]]
) -> dict[str, Any]:
    chat = Chat(folder)
    weights = load_weights(folder / "model.safetensors")
    sampler = Qwen2Sampler(model_config(folder), weights, chat.eos_id)
    measured: dict[str, Any] = {"bytes": sum(f.stat().st_size for f in folder.iterdir())}
    for name, environment in environments.items():
        found = evaluate(heldout[name], environment, chat, sampler, temperature=1.0, seed=0)
        measured[name] = {kind: round(found[kind]["reward"], 4) for kind in ("sampled", "greedy")}
    return measured
