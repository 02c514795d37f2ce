"""The study that would test what a log speaks for: an overlay over params.yaml, checked by loading it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rlvr_debug.config import ROOT, load_params
from rlvr_debug.diagnose.logs import Log
from rlvr_debug.errors import InputError, short

__all__ = ["STUDY", "overlay", "overlay_text", "params_of", "write_overlay"]

STUDY = "diagnosed"
_DEFAULTS = ROOT / "params.yaml"
_PROGRAM = ["python", "./train.py"]

# by hypothesis: its arms, as in studies/*.yaml; a rate and a limit of the case are filled in
_ARMS: Mapping[str, Mapping[str, Any]] = {
    "hidden-context": {"attention-mask": {"swap": ["attention_mask"]}},
    "sequence-mismatch": {
        "prompt-tools": {"swap": ["trained_prompt"]},
        "generation-prompt": {"swap": ["trained_tool_turn"]},
    },
    "eval-train-mismatch": {"same-reward-and-weights": {"swap": ["score", "saved_weights"]}},
    "token-masking": {"loss-mask": {"swap": ["loss_mask"]}},
    "sampler-mismatch": {"importance-sampling": {"training": {"importance_sampling_cap": 2.0}}},
    "lora-weight-sync": {"forced-sync": {"swap": ["sync"]}},
    "loss-aggregation": {
        "dr-grpo": {"training": {"aggregation": "dr_grpo"}},
        "dapo": {"training": {"aggregation": "dapo"}},
    },
    "optimizer-no-op": {"learning-rate": {"training": {"learning_rate": 0.0}}},
    "context-truncation": {"long-replies": {"options": {"max_completion_length": 0}}},
    "reward-signal": {"own-scores": {"swap": ["score"]}},
    "kl-penalty": {"kl-beta-0": {"training": {"kl_beta": 0.0}}},
    "advantage-scaling": {"no-scaling": {"training": {"scale_rewards": "none"}}},
    "gradient-explosion": {
        "clip-tenth": {"training": {"max_grad_norm": 0.1}},
        "tenth-of-rate": {"training": {"learning_rate": 0.0}},
    },
    "group-construction": {
        "larger-groups": {"training": {"prompts_per_step": 8, "group_size": 8}},
        "temperature-1": {"training": {"temperature": 1.0}},
    },
    "multi-step": {"single-step": {"environment": "gsm8k"}},
    "library-functionality": {"gsm8k": {"environment": "gsm8k"}},
}


def overlay(log: Log, slugs: Sequence[str], trainer: str) -> dict[str, Any]:
    """Keys and values. The case departs from a healthy run in what the log says: learning rate and limit."""
    usual = load_params(_DEFAULTS)
    training: dict[str, Any] = {}
    rates = log.series("learning_rate")
    if rates.size and rates.max() >= 0:
        training["learning_rate"] = float(rates.max())
    limit = _limit(log)
    case: dict[str, Any] = {"faults": []}
    if training:
        case["training"] = training
    if limit:
        case["options"] = {"max_completion_length": limit}
    healthy = float(usual["training"]["learning_rate"])
    arms = {
        slug: _filled(slug, training.get("learning_rate", healthy), healthy, limit)
        for slug in slugs
    }
    dropped = {slug: None for slug in usual["hypotheses"] if slug not in arms}
    # the default study's arms of the same hypothesis are not this study's
    kept = {
        slug: {
            "arms": {
                **{
                    name: None
                    for name in usual["hypotheses"].get(slug, {"arms": {}})["arms"]
                    if name not in each
                },
                **each,
            }
        }
        for slug, each in arms.items()
    }
    found: dict[str, Any] = {"study": STUDY, "trainer": trainer}
    if trainer == "command":
        found["command"] = {"program": _PROGRAM}
    if limit:
        found["options"] = {"max_completion_length": 4 * limit}
    return {**found, "case": "mine", "cases": {"mine": case}, "hypotheses": {**dropped, **kept}}


def _limit(log: Log) -> int:
    """Tokens at which replies are cut, where some were: the most that one has."""
    lengths = log.series("length_max")
    truncated = log.series("truncated")
    if not lengths.size or not truncated.size or truncated.max() <= 0:
        return 0
    return int(np.clip(lengths.max(), 0, 1e6))


def _filled(slug: str, rate: float, healthy: float, limit: int) -> dict[str, Any]:
    arms: dict[str, Any] = {name: dict(arm) for name, arm in _ARMS[slug].items()}
    if slug == "optimizer-no-op":
        arms["learning-rate"] = {"training": {"learning_rate": healthy if rate <= 0 else 10 * rate}}
    if slug == "gradient-explosion":
        arms["tenth-of-rate"] = {"training": {"learning_rate": (rate or healthy) / 10}}
    if slug == "context-truncation":
        arms["long-replies"] = {"options": {"max_completion_length": 4 * limit if limit else 1024}}
    return arms


def overlay_text(log: Log, slugs: Sequence[str], trainer: str) -> str:
    """As a file: what is still to be filled in stands at the top."""
    say = [
        f"# Written from {short(log.place.rsplit('/', 1)[-1])} by diagnose, which ranked, most likely first:",
        *(f"#   {slug}" for slug in slugs),
        "# Fill in: data, environment and base_model of your run (docs/data.md), and",
        "#   cases.mine.reward, your reward function as file.py:name (docs/trainers.md)"
        if trainer == "trl"
        else "#   command.program, your trainer's command (docs/trainers.md: the protocol)",
    ]
    body = yaml.safe_dump(
        overlay(log, slugs, trainer), sort_keys=False, default_flow_style=None, width=100
    )
    return "\n".join(say) + "\n" + body


def params_of(text: str) -> dict[str, Any]:
    """The whole parameters of a study with this overlay. Raises InputError where they are no study."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "overlay.yaml"
        path.write_text(text, encoding="utf-8")
        return load_params(_DEFAULTS, path)


def write_overlay(text: str, path: Path) -> None:
    """Write all of it or nothing, and never over what is there."""
    params_of(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.link(temporary, path)  # unlike a rename, it fails where the name is taken
    except FileExistsError:
        raise InputError(f"{path}: the file exists, expected a name that is free") from None
    finally:
        temporary.unlink(missing_ok=True)
