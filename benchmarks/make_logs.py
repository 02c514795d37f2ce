"""The logs in tests/logs: real runs of TRL's GRPOTrainer on processors, ten with a planted problem and three without.

    python -m benchmarks.make_logs [--only NAME ...] [--out tests/logs] [--reseed 200] [--environment gsm8k]

Each run trains the shipped model in TRL's own environment (envs/trl.txt, built where it is missing), a minute
on one core. Kept are the log history of the trainer_state.json that TRL writes, numbers with six digits, and
of the completions that it logs some groups of two steps. PLANTED says what each run departs in.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare, read_rows
from rlvr_debug.environments import build_environment
from rlvr_debug.files import read_json, write_json, write_jsonl
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers.trl.callback import Judge
from rlvr_debug.trainers.trl.config import config_of
from rlvr_debug.trainers.trl.environment import environment_class
from rlvr_debug.venvs import build_venv

__all__ = ["LOGS", "Made"]

_STEPS = 40
_GROUPS = 8
_KEPT_STEPS = (8, 72)  # of optimizer steps, two per batch
_KEYS = ("global_step", "max_steps", "logging_steps", "train_batch_size", "log_history")
_ANSWER = {"exact_match": 0.9, "f1": 1.0, "correct": 1.0}


@dataclass(frozen=True)
class Made:
    """One run. right: the hypotheses of which one should be ranked first, none for a healthy run.

    rewards: names of the reward functions below; config: of GRPOConfig; training: of ours.
    """

    seed: int
    right: tuple[str, ...]
    planted: str
    environment: str = "musique"
    rewards: tuple[str, ...] = ("environment",)
    training: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    trick: str = ""


LOGS: Mapping[str, Made] = {
    "healthy-musique": Made(711, (), "nothing"),
    "healthy-gsm8k": Made(712, (), "nothing; one turn, no tools", environment="gsm8k"),
    "healthy-parts": Made(
        713, (), "nothing; the reward in two parts", rewards=("answer", "evidence")
    ),
    "dead-groups": Made(
        714,
        ("reward-signal", "group-construction"),
        "every completion of a group gets the score of the group's first one",
        rewards=("first_of_group",),
    ),
    "truncation": Made(
        715,
        ("context-truncation",),
        "max_completion_length 12",
        config={"max_completion_length": 12},
    ),
    "kl-blow-up": Made(
        716,
        ("gradient-explosion", "kl-penalty"),
        "ten times the learning rate, beta 0.04",
        training={"learning_rate": 4e-3},
    ),
    "zero-rate": Made(
        717, ("optimizer-no-op",), "learning rate 0", training={"learning_rate": 0.0}
    ),
    "constant-reward": Made(718, ("reward-signal",), "reward 0.5", rewards=("half",)),
    "exploding-gradients": Made(
        719,
        ("gradient-explosion",),
        "learning rate 0.03, no clipping, beta 0",
        training={"learning_rate": 3e-2, "max_grad_norm": 1e9, "kl_beta": 0.0},
    ),
    "duplicates": Made(
        720, ("group-construction",), "top_k 1: all samples of a group are one", config={"top_k": 1}
    ),
    "reward-hacking": Made(
        721,
        ("reward-signal",),
        "a second part of the reward pays for short conversations",
        rewards=("answer", "brevity"),
    ),
    "schedule-ended": Made(
        722, ("optimizer-no-op",), "the schedule ends after a quarter of the steps", trick="ends"
    ),
    "hidden-prompt": Made(
        723,
        ("hidden-context",),
        "the loss' forward pass does not attend to the prompt",
        trick="hides",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=list(LOGS), default=list(LOGS))
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "logs")
    parser.add_argument("--reseed", type=int, default=0, help="added to every seed")
    parser.add_argument("--environment", help="instead of each run's own")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:  # in TRL's environment
        for name in args.only:
            made = replace(LOGS[name], seed=LOGS[name].seed + args.reseed)
            environment = args.environment or made.environment
            make(replace(made, environment=environment), args.out / name)
        return
    python = build_venv("trl")
    command = [str(python), "-m", "benchmarks.make_logs", "--inside", "--out", str(args.out)]
    command += ["--reseed", str(args.reseed)]
    command += ["--environment", args.environment] if args.environment else []
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    for name in args.only:
        done = subprocess.run(
            [*command, "--only", name], cwd=ROOT, env={**os.environ, **paths}, check=False
        )
        if done.returncode:
            sys.exit(done.returncode)
        print(f"{name}: {args.out / name}")


def make(made: Made, out: Path) -> None:
    """Train, and write trainer_state.json and completions.jsonl to `out`."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # of environment_factory
    import pandas as pd
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from rlvr_debug.trainers.trl.program import _make_parse_calls

    torch.set_num_threads(1)
    params = load_params(ROOT / "params.yaml")
    settings = replace(params.training, **{"steps": _STEPS, **made.training})
    environment = build_environment(made.environment, params.settings(made.environment))
    chat = Chat(ROOT / params.base_model)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        prepare(made.environment, params.data_settings(made.environment), place)
        rows = read_rows(made.environment, place / "train.jsonl")
        judge = Judge(environment, rows, chat)
        config = GRPOConfig(
            output_dir=str(place / "trl"),
            save_strategy="no",  # TRL's checkpoints are pickles
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=made.seed,
            log_completions=True,
            num_completions_to_print=0,
            **{
                **config_of(settings, environment, environment.max_new_tokens),
                "max_completion_length": 256,
                **made.config,
            },
        )
        tools = (
            {"environment_factory": environment_class(environment, rows)}
            if environment.tools
            else {}
        )
        if tools:
            _make_parse_calls(chat)
        trainer = GRPOTrainer(
            model=str(ROOT / params.base_model),
            reward_funcs=[reward(name, judge, settings.group_size) for name in made.rewards],
            args=config,
            train_dataset=Dataset.from_list(
                [
                    {"prompt": environment.messages(row), "index": place_}
                    for place_, row in enumerate(rows)
                ]
            ),
            processing_class=chat.tokenizer,
            **tools,
        )
        _TRICKS[made.trick](trainer, config)
        trainer.train()
        trainer.save_state()
        state = read_json(place / "trl" / "trainer_state.json")
        tables = [pd.read_parquet(f) for f in sorted((place / "trl").rglob("*.parquet"))]
    write_json(out / "trainer_state.json", _rounded({key: state[key] for key in _KEYS}))
    write_jsonl(out / "completions.jsonl", _kept(pd.concat(tables), settings.group_size))


def reward(name: str, judge: Judge, size: int) -> Callable[..., list[float]]:
    """A reward function with TRL's signature, by name."""

    def scored(completion_ids: Any, index: Any) -> list[dict[str, float]]:
        environment = judge.environment
        found = []
        for place, ids in zip(index, completion_ids, strict=True):
            rollout = judge.rollout(place, ids)
            parts = rollout.parts
            other = {part: w for part, w in environment.weights.items() if part not in _ANSWER}
            answer = {part: w for part, w in _ANSWER.items() if part in parts}
            found.append(
                {
                    "environment": environment.reward(rollout.row, parts),
                    "answer": _mean(parts, answer),
                    "evidence": _mean(parts, other),
                    "brevity": max(0.0, 1 - len(ids) / 64),
                    "half": 0.5,
                }
            )
        return found

    def function(completion_ids: Any, index: Any, **_: Any) -> list[float]:
        if name == "first_of_group":
            scores = [each["environment"] for each in scored(completion_ids, index)]
            return [scores[place - place % size] for place in range(len(scores))]
        return [each[name] for each in scored(completion_ids, index)]

    function.__name__ = name
    return function


def _mean(parts: Mapping[str, float], weights: Mapping[str, float]) -> float:
    total = sum(weights.values())
    return sum(weights[name] * parts[name] for name in weights) / total if total else 0.0


def _hides(trainer: Any, config: Any) -> None:
    """As in TRL PR 2708 and verifiers 0.1.3: log-probabilities without attention to the prompt.

    The prompt's last token stays: a row of attention needs one.
    """
    inner = trainer._get_per_token_logps_and_entropies

    def blind(
        model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *a: Any, **k: Any
    ) -> Any:
        mask = attention_mask.clone()
        mask[:, : -logits_to_keep - 1] = 0
        return inner(model, input_ids, mask, logits_to_keep, *a, **k)

    trainer._get_per_token_logps_and_entropies = blind


def _ends(trainer: Any, config: Any) -> None:
    """A linear schedule that was made for a quarter of the steps."""
    quarter = config.max_steps // 4
    create = trainer.create_scheduler
    trainer.args.lr_scheduler_type = "linear"
    trainer.create_scheduler = lambda num_training_steps, optimizer=None: create(quarter, optimizer)


_TRICKS: Mapping[str, Callable[[Any, Any], None]] = {
    "": lambda trainer, config: None,
    "hides": _hides,
    "ends": _ends,
}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _kept(table: Any, size: int) -> Sequence[dict[str, Any]]:
    """TRL's columns of some groups; of a prompt its last message, of a completion its messages."""
    rows = []
    for step in _KEPT_STEPS:
        for row in table[table["step"] == step].to_dict("records")[: _GROUPS * size]:
            row["prompt"] = row["prompt"][-1]["content"]
            messages = [
                {key: value for key, value in message.items() if value is not None}
                for message in row["completion"]
            ]
            row["completion"] = json.dumps(messages, default=lambda item: item.tolist())
            rows.append({key: _rounded(value) for key, value in row.items()})
    return rows


if __name__ == "__main__":
    main()
