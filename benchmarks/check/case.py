"""One GRPO run as a user's script has it: what is handed to the trainer, which settings and faults change."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = Path(__file__).resolve().parents[2] / "models" / "tiny"
STEPS = 5

SYSTEM = "Solve the problem."
_NAMES = ("Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana")
_ITEMS = ("apples", "books", "cards", "eggs", "pens", "shells", "stamps", "toys")


@dataclass(frozen=True)
class Case:
    """What a script hands to TRL's trainer.

    `config` are arguments of GRPOConfig, `options` further ones of the trainer. `after` are called with the trainer before
    it trains, as a script may, `checkpoint` is where a resumed run goes on, and `settings` names what was changed so far.
    """

    tokenizer: Any
    rewards: tuple[Any, ...]
    rows: tuple[Mapping[str, Any], ...]
    config: Mapping[str, Any]
    trainer: Any = GRPOTrainer
    model: Any = str(TINY)
    options: Mapping[str, Any] = field(default_factory=dict)
    after: tuple[Callable[[Any], None], ...] = ()
    checkpoint: str | None = None
    settings: tuple[str, ...] = ()

    def told(self, **config: Any) -> Case:
        """Return the case with these arguments of GRPOConfig."""
        return replace(self, config={**self.config, **config})

    def given(self, **options: Any) -> Case:
        """Return the case with these arguments of the trainer."""
        return replace(self, options={**self.options, **options})

    def then(self, step: Callable[[Any], None]) -> Case:
        """Return the case in which `step` is called with the trainer before it trains."""
        return replace(self, after=(*self.after, step))


def plain(model: str, precision: str, seed: int, out: str) -> Case:
    """Return the healthy case that every other one is made from: 4 prompts of 4 completions, two micro-batches."""
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    config = {
        "output_dir": out,
        "max_steps": STEPS,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_completion_length": 20,
        "learning_rate": 5e-4,
        "beta": 0.0,
        "temperature": 1.0,
        "seed": seed,
        "bf16": precision == "bf16",
        "use_cpu": not torch.cuda.is_available(),
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
    }
    return Case(tokenizer, (answer_reward, variety_reward), rows(seed), config, model=model)


def rows(seed: int, count: int = 64) -> tuple[dict[str, Any], ...]:
    """Return word problems as conversations, with the column `answer`."""
    rng = random.Random(seed)
    return tuple(_row(rng) for _ in range(count))


def _row(rng: random.Random) -> dict[str, Any]:
    name, item, a, b = rng.choice(_NAMES), rng.choice(_ITEMS), rng.randint(2, 9), rng.randint(2, 9)
    question = f"{name} has {a} boxes with {b} {item} each."
    if rng.random() < 0.7:  # prompts of two lengths, so that there is padding
        question += f" How many {item} does {name} have?"
    system, user = {"role": "system", "content": SYSTEM}, {"role": "user", "content": question}
    return {"prompt": [system, user], "answer": str(a * b)}


def texts(completions: Any) -> list[str]:
    """Return what the model said in each completion, a text or a conversation."""
    return [said if isinstance(said, str) else _content(said) for said in completions]


def _content(messages: Any) -> str:
    said = [m for m in messages if m.get("role") == "assistant"]
    return " ".join(str(m.get("content") or "") for m in said)


def answer_reward(completions: Any, answer: Any, **_: Any) -> list[float]:
    """1 where the answer stands in the completion, and a part of it for each of its digits."""
    pairs = zip(texts(completions), answer, strict=True)
    return [
        float(a in said) + 0.3 * sum(d in said for d in set(a)) / len(set(a)) for said, a in pairs
    ]


def variety_reward(completions: Any, **_: Any) -> list[float]:
    """More for texts of many different characters."""
    return [len(set(said)) / 20 + 0.002 * len(said) for said in texts(completions)]


def trainer_of(case: Case) -> Any:
    """Return the case's trainer. Raises SystemExit where this TRL lacks an argument."""
    known = {f.name for f in fields(GRPOConfig)}
    if unknown := sorted(set(case.config) - known):
        raise SystemExit(f"TRL {trl.__version__} has no {', '.join(unknown)} in GRPOConfig")
    return case.trainer(
        model=case.model,
        reward_funcs=list(case.rewards),
        args=GRPOConfig(**case.config),
        train_dataset=Dataset.from_list([dict(row) for row in case.rows]),
        processing_class=case.tokenizer,
        **case.options,
    )


def train(case: Case) -> Any:
    """Train, save as a script does, and return the trainer."""
    trainer = trainer_of(case)
    for step in case.after:
        step(trainer)
    trainer.train(resume_from_checkpoint=case.checkpoint)
    trainer.save_model(case.config["output_dir"])
    return trainer
