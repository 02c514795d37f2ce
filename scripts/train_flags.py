"""The command line that users of verifiers' examples know, in front of the same trainer.

Flags become an overlay of params.yaml, which is checked like any other and kept beside the results.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import rows_of
from rlvr_debug.environments import task_of
from rlvr_debug.errors import InputError
from rlvr_debug.files import write_jsonl, write_text
from rlvr_debug.study.arms import HEALTHY, runs
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers.base import Job

__all__ = ["train_by_flags"]


def train_by_flags(environment: str, arguments: Sequence[str] | None = None) -> None:
    """Train a model on an environment as the flags say. Raises InputError for values out of range."""
    args = _parser(environment).parse_args(arguments)
    from rlvr_debug.trainers.own.training import train_run  # with torch, which --help does without

    overlay = args.out / "params.yaml"
    write_text(overlay, yaml.safe_dump(_overlay(environment, args), sort_keys=False))
    params = load_params(ROOT / "params.yaml", overlay)
    run = next(run for run in runs(params) if run.environment == environment)
    key = "path" if args.rows else "datasets"
    rows = args.out / "rows.jsonl"
    found = rows_of(environment, params.data_settings(environment), key)
    write_jsonl(rows, (row.to_json() for row in found))
    train_run(
        Job(
            replace(run, seed=args.seed),
            params.settings(environment),
            args.model,
            rows,
            args.out,
            params.diagnostics,
        )
    )


def _parser(environment: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=f"GRPO on {environment}.")
    commands = parser.add_subparsers(required=True, metavar="command")
    train = commands.add_parser(
        "train", help="train", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = train.add_argument
    add("--model", type=Path, default=ROOT / "models" / "tiny", help="folder of a Qwen2 model")
    add("--out", type=Path, default=Path("outputs", environment), help="folder for the results")
    add(
        "--datasets", default=task_of(environment).datasets, help="path,config,split;... on the hub"
    )
    add("--rows", help="train on the rows of this file instead")
    add("--seed", type=int, default=0)
    add("--loss-type", choices=["grpo", "bnpo", "dr_grpo", "dapo"], default="grpo")
    add("--scale-rewards", action=argparse.BooleanOptionalAction, default=True)
    add("--lora-r", type=int, default=16, help="0: full fine-tuning")
    add("--lora-alpha", type=int, default=32)
    add("--batch-size", type=int, default=8, help="rollouts per process and micro-batch")
    add("--num-generations", type=int, default=8, help="rollouts per prompt")
    add("--gradient-accumulation-steps", type=int, default=4, help="micro-batches per update")
    add("--max-grad-norm", type=float, default=0.1)
    add("--learning-rate", type=float, default=1e-5)
    add("--lr-scheduler-type", choices=["constant", "linear", "cosine"], default="constant")
    add("--warmup-steps", type=int, default=10)
    add("--max-steps", type=int, default=50)
    add("--kl-beta", type=float, default=0.0)
    add("--temperature", type=float, default=0.5)
    add("--max-prompt-length", type=int, default=4096)
    add("--max-new-tokens", type=int, default=1024)
    add("--bf16", action=argparse.BooleanOptionalAction, default=False)
    add("--gradient-checkpointing", action=argparse.BooleanOptionalAction, default=False)
    for flag, told in task_of(environment).flags.items():
        add(flag, **told)
    return parser


def _overlay(environment: str, args: argparse.Namespace) -> dict[str, Any]:
    rollouts = (
        args.batch_size * args.gradient_accumulation_steps * int(os.environ.get("WORLD_SIZE", "1"))
    )
    if args.num_generations < 1 or rollouts < 1 or rollouts % args.num_generations:
        raise InputError(
            f"--batch-size times --gradient-accumulation-steps times processes is {rollouts}, "
            f"expected a multiple of --num-generations {args.num_generations}"
        )
    settings: dict[str, Any] = {"max_new_tokens": args.max_new_tokens}
    own = [told["dest"] for told in task_of(environment).flags.values()]
    settings |= {name: getattr(args, name) for name in own}
    source = (
        {"source": "jsonl", "path": args.rows}
        if args.rows
        else {"source": "hub", "datasets": args.datasets}
    )
    return {
        "study": f"train-{environment}",
        "case": HEALTHY,
        "environment": environment,
        "seeds": [args.seed],
        "data": {environment: source},
        "environments": {environment: settings},
        "training": {
            "steps": args.max_steps,
            "prompts_per_step": rollouts // args.num_generations,
            "group_size": args.num_generations,
            "max_prompt_length": args.max_prompt_length,
            "learning_rate": args.learning_rate,
            "lr_scheduler_type": args.lr_scheduler_type,
            "warmup_steps": args.warmup_steps,
            "num_iterations": 1,
            "gradient_accumulation_steps": args.gradient_accumulation_steps,
            "lora_r": args.lora_r,
            "lora_alpha": args.lora_alpha,
            "bf16": args.bf16,
            "gradient_checkpointing": args.gradient_checkpointing,
            "temperature": args.temperature,
            "kl_beta": args.kl_beta,
            "scale_rewards": "group" if args.scale_rewards else "none",
            "aggregation": args.loss_type,
            "max_grad_norm": args.max_grad_norm,
        },
    }
