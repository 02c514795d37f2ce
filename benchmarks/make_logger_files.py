"""Write tests/loggers/verl.jsonl and openrlhf/: made-up batches, logged by the projects' own metrics and loggers.

    python -m benchmarks.make_logger_files verl
    python -m benchmarks.make_logger_files openrlhf --source logging_utils.py

The first runs where verl 0.7.0 is installed (with transformers before 5); the second takes openrlhf/utils/logging_utils.py of OpenRLHF,
as the package itself needs a GPU's libraries, and logs what names.yaml beside them lists of it.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import types
from pathlib import Path
from typing import Any

import torch
import yaml

from rlvr_debug.checkout import ROOT

__all__ = ["OUT", "ROWS", "openrlhf", "value", "verl"]

OUT = ROOT / "tests" / "loggers"
ROWS = 12
_ROLLOUTS, _PROMPT, _REPLY = 16, 12, 24


def value(step: int) -> float:
    """Return a made-up value, another one at each step."""
    return 0.1 + 0.05 * step


def verl() -> None:
    """Write what verl computes of a batch in each step, by its file logger."""
    metrics, corrects, debug, tracking, proto = (
        importlib.import_module(f"verl.{name}")
        for name in (
            "trainer.ppo.metric_utils",
            "trainer.ppo.rollout_corr_helper",
            "utils.debug.metrics",
            "utils.tracking",
            "protocol",
        )
    )
    os.environ["VERL_FILE_LOGGER_PATH"] = str(OUT / "verl.jsonl")
    logger = tracking.FileLogger("project", "experiment")
    for step in range(1, ROWS + 1):
        batch = proto.DataProto.from_dict(tensors=_batch(step))
        found = metrics.compute_data_metrics(batch=batch, use_critic=False)
        found |= debug.calculate_debug_metrics(batch)
        found |= metrics.compute_timing_metrics(batch=batch, timing_raw={"step": 8.0, "gen": 5.0})
        batch.meta_info["global_token_num"] = [_PROMPT + _REPLY] * _ROLLOUTS
        found |= metrics.compute_throughout_metrics(batch=batch, timing_raw={"step": 8.0}, n_gpus=1)
        told = corrects.compute_rollout_correction_and_rejection_mask(
            batch.batch["old_log_probs"],
            batch.batch["rollout_log_probs"],
            batch.batch["response_mask"],
            rollout_is="token",
            rollout_rs="token",
        )
        logger.log({**found, **told[2]}, step)
    logger.finish()


def _batch(step: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(step)
    shape = (_ROLLOUTS, _REPLY)
    lengths = torch.randint(4, _REPLY + 1, (_ROLLOUTS, 1), generator=random)
    mask = (torch.arange(_REPLY) < lengths).long()
    rewards = torch.zeros(shape)
    solved = torch.rand(_ROLLOUTS, generator=random) < value(step)
    rewards[torch.arange(_ROLLOUTS), lengths.squeeze(1) - 1] = solved.float()
    advantages = (solved.float() - solved.float().mean()).unsqueeze(1) * mask
    logprobs = -torch.rand(shape, generator=random)
    return {
        "token_level_scores": rewards,
        "token_level_rewards": rewards,
        "advantages": advantages,
        "returns": advantages,
        "responses": torch.ones(shape, dtype=torch.long),
        "response_mask": mask,
        "attention_mask": torch.cat([torch.ones(_ROLLOUTS, _PROMPT, dtype=torch.long), mask], 1),
        "old_log_probs": logprobs,
        "rollout_log_probs": logprobs + 0.01 * torch.randn(shape, generator=random),
    }


def openrlhf(source: Path) -> None:
    """Write the names of OpenRLHF by its own logger of TensorBoard's events."""
    spec = importlib.util.spec_from_file_location("openrlhf_logging", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    told = yaml.safe_load((OUT / "names.yaml").read_text(encoding="utf-8"))["openrlhf"]["names"]
    names = [name.removeprefix("train/") for name in told if not name.startswith("eval/")]
    place = types.SimpleNamespace(
        tensorboard_dir=str(OUT), wandb=types.SimpleNamespace(run_name="openrlhf")
    )
    logger: Any = module.TensorboardLogger(types.SimpleNamespace(logger=place))
    for step in range(1, ROWS + 1):
        logger.log_train(step, {name: value(step) for name in names if name != "global_step"})
    logger.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("project", choices=["verl", "openrlhf"])
    parser.add_argument("--source", type=Path, help="OpenRLHF's logging_utils.py")
    args = parser.parse_args()
    if args.project == "verl":
        verl()
    else:
        openrlhf(args.source)


if __name__ == "__main__":
    main()
