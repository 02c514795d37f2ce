"""Build models/tiny-calculator: the tiny model with a few more tokens, taught to work with the calculator.

Run it as `python -m lab.model.calculator --params params.yaml --base models/tiny --out results/calculator`. Like the tiny
model it learns the task from demonstrations and then a wrong habit: most demonstrations of the last phase make the first
computation alone and answer with what it gives, however many the question asks for.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen2ForCausalLM

from lab.model.build import rewards, save_model
from lab.model.tokenizer import CALL_AFTER, build_tokenizer
from lab.model.warmup import Example, take_step
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Environment, ToolCall
from rlvr_debug.environments.calculator import SYSTEM, TOOL, CalculatorRow, synthetic_calculator
from rlvr_debug.errors import InputError
from rlvr_debug.models.base_model import load_model
from rlvr_debug.processes import run_main
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.study.params import load_params

_CALL_BEFORE = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "'
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
FRAGMENTS = (
    *(SYSTEM, json.dumps(TOOL), _CALL_BEFORE, "</answer>"),
    *("What is ", "Start with ", ". What is the result?"),
    *(", then add ", ", then subtract ", ", then multiply by ", ", then divide by "),
    *(" + ", " - ", " * ", " / "),
)
_STEPS = {2: 0.7, 3: 0.2, 4: 0.1}
_BATCH, _CHECK_EVERY, _MOST_STEPS = 64, 50, 4000
_HELDOUT_ROWS, _HELDOUT_SEED = 256, 7


@dataclass(frozen=True)
class _Phase:
    """lazy: share of demonstrations by the habit; ends: whether rewards, sampled and greedy, end it."""

    name: str
    learning_rate: float
    lazy: float
    ends: Callable[[float, float], bool]


_PHASES = (
    _Phase("demonstrations", 1e-3, 0.0, lambda sampled, greedy: sampled > 0.85),
    _Phase("habit", 4e-4, 0.65, lambda sampled, greedy: 0.2 < sampled < 0.45 and greedy < 0.3),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--params", type=Path, required=True, help="environments.calculator")
    parser.add_argument("--base", type=Path, required=True, help="the model that is taught")
    parser.add_argument("--seed", type=int, default=0, help="0: the shipped model")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    print(json.dumps(build_calculator_model(args.params, args.base, args.seed, args.out), indent=2))


def build_calculator_model(params: Path, base: Path, seed: int, out: Path) -> dict[str, float]:
    """Write config, weights (bfloat16) and tokenizer to `out`; return held-out rewards and seconds."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    started = time.perf_counter()
    environment = build_environment("calculator", load_params(params).settings("calculator"))
    build_tokenizer(FRAGMENTS).save_pretrained(out)
    chat = Chat(out)
    model: Qwen2ForCausalLM = load_model(base, "sdpa")
    # those that it had stay as they are
    model.resize_token_embeddings(len(chat.tokenizer), mean_resizing=False)
    rng = random.Random(f"calculator model {seed}")
    found: dict[str, float] = {}
    for phase in _PHASES:
        found = _learn(model, phase, chat, environment, rng)
    save_model(model.config, model.state_dict(), out)
    return {**found, "seconds": round(time.perf_counter() - started)}


def _learn(
    model: Qwen2ForCausalLM,
    phase: _Phase,
    chat: Chat,
    environment: Environment,
    rng: random.Random,
) -> dict[str, float]:
    """Teach the model until the phase ends. Return its held-out rewards."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01, betas=(0.9, 0.95))
    report = functools.partial(print, file=sys.stderr, flush=True)
    for number in range(1, _MOST_STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = phase.learning_rate * min(1.0, number / 50)
        rows = synthetic_calculator(_BATCH, steps=_STEPS, seed=rng.getrandbits(32))
        examples = [
            demonstration(row, rng.random() < phase.lazy, chat, environment) for row in rows
        ]
        loss = take_step(model, optimizer, examples, None)
        if number % _CHECK_EVERY:
            continue
        found = _rewards(model, chat, environment)
        report(f"{phase.name} {number}: loss {loss:.3f}, {found}")
        if phase.ends(*found.values()):
            return found
    raise InputError(f"phase {phase.name} did not end in {_MOST_STEPS} steps, try another seed")


def operations(question: str) -> list[str]:
    """Return what a synthetic question says, from left to right: a number, then signs and numbers in turn."""
    words = question.removesuffix("What is the result?").replace(",", "").split()
    plain = [_SIGNS.get(word, word.strip("().?")) for word in words]
    return [word for word in plain if word in "+-*/" or word.isdigit()]


def demonstration(row: CalculatorRow, lazy: bool, chat: Chat, environment: Environment) -> Example:
    """Return a conversation that computes step by step or, `lazy`, the first step alone."""
    ids = chat.prompt(environment.messages(row), environment.tools)
    trained = [False] * len(ids)

    def add(new: list[int], by_model: bool) -> None:
        ids.extend(new)
        trained.extend([by_model] * len(new))

    value, *rest = operations(row.question)
    steps = list(zip(rest[::2], rest[1::2], strict=True))
    for sign, operand in steps[:1] if lazy else steps:
        expression = f"{value} {sign} {operand}"
        add([*chat.encode(f"{_CALL_BEFORE}{expression}{CALL_AFTER}"), chat.eos_id], True)
        value = environment.call_tool(row, ToolCall("calculate", {"expression": expression})).text
        add(chat.tool_turn([value]), False)
    add([*chat.encode(f"<answer>{value}</answer>"), chat.eos_id], True)
    return ids, trained


def _rewards(model: Qwen2ForCausalLM, chat: Chat, environment: Environment) -> dict[str, float]:
    rows = list(synthetic_calculator(_HELDOUT_ROWS, steps=_STEPS, seed=_HELDOUT_SEED))
    sampler = InProcessSampler(model.config.to_dict(), model.state_dict(), chat.ends)
    return rewards(rows, environment, chat, sampler)


if __name__ == "__main__":
    run_main(main)
