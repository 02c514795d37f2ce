"""The command line that users of verifiers' examples know, in front of the same trainer (docs/original.md).

Flags become an overlay of params.yaml, which is checked like any other and kept beside the results.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rlvr_debug.checkout import ROOT
from rlvr_debug.environments import task_of
from rlvr_debug.errors import InputError
from rlvr_debug.study.model import HEALTHY, Vllm

# of vLLM's server, but for who shares it: one training has its own
_VLLM = tuple(key for key in fields(Vllm) if key.name != "shared_by")


def train_by_flags(environment: str, arguments: Sequence[str] | None = None) -> None:
    """Train a model on an environment as the flags say. Raises InputError for values out of range."""
    args = parser_of(environment).parse_args(arguments)
    from rlvr_debug.study.single import train_single  # with torch, which --help does without

    train_single(overlay_of(environment, args), args.num_epochs, args.output_dir)


def parser_of(environment: str) -> argparse.ArgumentParser:
    """Make the parser; flags and defaults are those of the original's scripts, but for what docs/original.md lists."""
    parser = argparse.ArgumentParser(description=f"GRPO on {environment}.")
    commands = parser.add_subparsers(required=True, metavar="command")
    train = commands.add_parser(
        "train", help="train", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    task, add = task_of(environment), train.add_argument
    add(
        "--model",
        "-m",
        default=str(ROOT / "models" / "tiny"),
        help="a folder, or owner/name or owner/name@revision on the hub",
    )
    add("--datasets", default=task.datasets, help="path,config,split;... on the hub")
    add("--rows", help="train on the rows of this file instead")
    add("--output-dir", "-o", type=Path, default=Path("outputs", environment), help="for results")
    add("--seed", type=int, default=0)
    add("--num-epochs", type=int, default=1, help="how often as many rows as there are are drawn")
    add("--max-steps", type=int, help="optimizer steps, whatever --num-epochs says")
    add("--batch-size", type=int, default=8, help="rollouts per process and micro-batch")
    add("--num-generations", type=int, default=8, help="rollouts per prompt")
    add("--gradient-accumulation-steps", type=int, default=8, help="micro-batches per update")
    add("--num-iterations", type=int, default=1, help="optimizer steps per batch of rollouts")
    add("--loss-type", choices=["grpo", "bnpo", "dr_grpo", "dapo"], default="grpo")
    _add_switch(train, "scale-rewards", False)
    add("--kl-beta", "--beta", type=float, default=0.04)
    _add_switch(train, "peft", True, "train an adapter")
    add("--lora-r", type=int, default=16, help="0: full fine-tuning")
    add("--lora-alpha", type=int, default=32)
    add("--learning-rate", "-lr", type=float, default=1e-5)
    schedules = {"constant_with_warmup": "constant"} | {s: s for s in ("linear", "cosine")}
    add("--lr-scheduler-type", choices=schedules, default="constant_with_warmup")
    add("--warmup-steps", type=int, default=10)
    add("--max-grad-norm", type=float, default=0.1)
    add("--temperature", type=float, default=0.5)
    add("--max-prompt-length", type=int, default=4096)
    add("--max-new-tokens", type=int, default=1024)
    _add_switch(train, "bf16", False)
    _add_switch(train, "gradient-checkpointing", True)
    add("--save-steps", type=int, default=100, help="steps between checkpoints")
    add("--logging-steps", type=int, choices=[1], default=1, help="every step has a row of metrics")
    add("--report-to", choices=["none", "tensorboard", "wandb"], default="none")
    add("--sampler", choices=["in-process", "vllm"], default="in-process", help="who rolls out")
    for key in _VLLM:
        _add(train, f"vllm-{key.name.replace('_', '-')}", key.default)
    for flag, options in task.flags.items():
        add(flag, **options)
    train.set_defaults(schedules=schedules, **task.flag_defaults)
    return parser


def _add(parser: argparse.ArgumentParser, name: str, default: Any) -> None:
    """Add a flag of the kind of its default."""
    if isinstance(default, bool):
        _add_switch(parser, name, default)
    else:
        parser.add_argument(f"--{name}", type=type(default), default=default)


def _add_switch(
    parser: argparse.ArgumentParser, name: str, default: bool, says: str | None = None
) -> None:
    """Add --name, --name true, --name false and --no-name."""
    dest = name.replace("-", "_")
    parser.add_argument(
        f"--{name}",
        nargs="?",
        const=True,
        default=default,
        type=_truth,
        metavar="true|false",
        help=says or " ",
    )
    parser.add_argument(
        f"--no-{name}",
        dest=dest,
        action="store_false",
        default=default,
        help=argparse.SUPPRESS,
    )


def _truth(word: str) -> bool:
    known = {"true": True, "false": False}
    if word.lower() not in known:
        raise argparse.ArgumentTypeError(f"found '{word}', expected true or false")
    return known[word.lower()]


def overlay_of(environment: str, args: argparse.Namespace) -> dict[str, Any]:
    task = task_of(environment)
    settings: dict[str, Any] = {"max_new_tokens": args.max_new_tokens}
    settings |= {flag["dest"]: getattr(args, flag["dest"]) for flag in task.flags.values()}
    source = (
        {"source": "jsonl", "path": args.rows}
        if args.rows
        else {"source": "hub", "datasets": args.datasets}
    )
    return {
        "study": f"train-{environment}",
        "case": HEALTHY,
        "environment": environment,
        "design": "fixed",
        "seeds": [args.seed],
        "base_model": args.model,
        "sampler": args.sampler,
        "vllm": {key.name: getattr(args, f"vllm_{key.name}") for key in _VLLM},
        "data": {environment: source},
        "environments": {environment: settings},
        "training": _training(args),
        "diagnostics": {"trackers": [] if args.report_to == "none" else [args.report_to]},
    }


def _training(args: argparse.Namespace) -> dict[str, Any]:
    rollouts = (
        args.batch_size * args.gradient_accumulation_steps * int(os.environ.get("WORLD_SIZE", "1"))
    )
    if args.num_generations < 1 or rollouts < 1 or rollouts % args.num_generations:
        raise InputError(
            f"--batch-size times --gradient-accumulation-steps times processes is {rollouts}, "
            f"expected a multiple of --num-generations {args.num_generations}"
        )
    training: dict[str, Any] = {
        "prompts_per_step": rollouts // args.num_generations,
        "group_size": args.num_generations,
        "lr_scheduler_type": args.schedules[args.lr_scheduler_type],
        "scale_rewards": "group" if args.scale_rewards else "none",
        "aggregation": args.loss_type,
        "lora_r": args.lora_r if args.peft else 0,
    }
    if training["lora_r"]:
        training["lora_alpha"] = args.lora_alpha
    if args.max_steps is not None:
        # a step of ours is a batch of rollouts, with as many optimizer steps as it has iterations
        training["steps"] = math.ceil(args.max_steps / max(args.num_iterations, 1))
    same = (
        *("save_steps", "max_prompt_length", "learning_rate", "warmup_steps", "num_iterations"),
        *("gradient_accumulation_steps", "bf16", "gradient_checkpointing", "temperature"),
        *("kl_beta", "max_grad_norm"),
    )
    return {**training, **{key: getattr(args, key) for key in same}}
