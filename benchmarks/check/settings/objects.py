"""Settings that are objects of the script: rewards, rows, callbacks, optimizers, a checkpoint."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from transformers import Qwen2Config, Qwen2ForSequenceClassification, TrainerCallback
from transformers.optimization import get_cosine_schedule_with_warmup

from benchmarks.check.case import SYSTEM, Case, answer_reward, texts, variety_reward
from benchmarks.check.case import rows as problems
from benchmarks.check.settings.setting import FIRST, Setting, setting, told


def _rewarded(name: str, *rewards: Any, since: str = FIRST) -> Setting:
    """Return the setting with these rewards."""
    return Setting(name, lambda case: replace(case, rewards=rewards), since)


def of_two_digits(completions: Any, answer: Any, **_: Any) -> list[float | None]:
    """None where a reward has nothing to say: here of answers with one digit."""
    pairs = zip(texts(completions), answer, strict=True)
    return [None if len(a) < 2 else float(a in said) for said, a in pairs]


def without_a_four(completions: Any, **_: Any) -> list[float | None]:
    """All rewards are None for some completions, and so is what they are worth."""
    return [None if "4" in said else len(said) / 50 for said in texts(completions)]


def rank_reward(completions: Any, **_: Any) -> list[float]:
    """A completion is worth its rank within the batch."""
    lengths = [len(said) for said in texts(completions)]
    return [sum(other > own for other in lengths) / len(lengths) for own in lengths]


async def slow_reward(completions: Any, **_: Any) -> list[float]:
    await asyncio.sleep(0.01)
    return [said.count("e") / 5 for said in texts(completions)]


def distinct(completion_ids: Any, **_: Any) -> list[float]:
    return [len(set(ids)) / len(ids) for ids in completion_ids]


def curriculum(completions: Any, trainer_state: Any, **_: Any) -> list[float]:
    """The trainer's state is handed to rewards, for those that change as training goes on."""
    weight = 1 + trainer_state.global_step
    return [weight / (1 + len(said) / 20) for said in texts(completions)]


def penalty(completions: Any, **_: Any) -> list[float]:
    return [-float(len(said)) for said in texts(completions)]


def nine(completions: Any, **_: Any) -> list[float]:
    """Most groups have no contrast."""
    return [float("9" in said) for said in texts(completions)]


def reward_objects(case: Case) -> Case:
    """An object and a partial function."""

    class Contains:
        __name__ = "contains"

        def __call__(self, completions: Any, **_: Any) -> list[float]:
            return [float("<think>" in said) for said in texts(completions)]

    def shorter_than(limit: int, completions: Any, **_: Any) -> list[float]:
        return [float(len(said) < limit) for said in texts(completions)]

    partial = functools.partial(shorter_than, 30)
    partial.__name__ = "shorter"  # type: ignore[attr-defined]
    return replace(case, rewards=(Contains(), partial, answer_reward))


def reward_model(case: Case) -> Case:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(case.tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_labels=1,
        pad_token_id=case.tokenizer.pad_token_id,
    )
    model = Qwen2ForSequenceClassification(config).eval()
    model.config._name_or_path = "judge"
    given = {"reward_processing_classes": [case.tokenizer, None]}
    return replace(case, rewards=(model, variety_reward)).given(**given)


def _asked(name: str, change: Callable[[Any], Any]) -> Setting:
    """Return the setting whose prompts are `change` of the usual ones."""

    def changed(case: Case) -> Case:
        asked = [{**row, "prompt": change(row["prompt"])} for row in case.rows]
        return replace(case, rows=tuple(asked))

    return Setting(name, changed)


# the prompt ends with the second question of a conversation
_BEFORE = (
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": "Ada has 2 boxes with 3 pens each."},
    {"role": "assistant", "content": "<think>2*3=6</think>6"},
)


def extra_columns(case: Case) -> Case:
    more = [
        {**row, "id": n, "tags": ["a", "b"], "hard": n % 2 == 0} for n, row in enumerate(case.rows)
    ]

    def by_column(completions: Any, hard: Any, id: Any, **_: Any) -> list[float]:
        said = texts(completions)
        return [
            (2 if h else 1) / (1 + len(t)) + 0.001 * i
            for t, h, i in zip(said, hard, id, strict=True)
        ]

    return replace(case, rows=tuple(more), rewards=(answer_reward, by_column))


def streamed_rows(case: Case) -> Case:
    class Streamed(case.trainer):
        def __init__(self, *args: Any, train_dataset: Any, **named: Any) -> None:
            stream: IterableDataset = train_dataset.to_iterable_dataset()
            super().__init__(*args, train_dataset=stream, **named)

    return replace(case, trainer=Streamed)


def evaluated(case: Case) -> Case:
    held_out = [dict(row) for row in problems(1, 8)]
    case = case.told(eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=8)
    return case.given(eval_dataset=Dataset.from_list(held_out))


def users_callback(case: Case) -> Case:
    class Printing(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            print("step", state.global_step)

    return case.given(callbacks=[Printing()])


def own_optimizer(case: Case) -> Case:
    """Two learning rates, and a schedule of the script's own."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(case.model).float()
    head = [p for n, p in model.named_parameters() if "lm_head" in n]
    rest = [p for n, p in model.named_parameters() if "lm_head" not in n]
    groups = [{"params": head, "lr": 1e-4}, {"params": rest, "lr": 1e-3, "weight_decay": 0.05}]
    optimizer = torch.optim.AdamW(groups, betas=(0.8, 0.95))
    schedule = get_cosine_schedule_with_warmup(optimizer, 1, case.config["max_steps"])
    return replace(case, model=model).given(optimizers=(optimizer, schedule))


def resumed(case: Case) -> Case:
    """A run that goes on from its second step, as an earlier process saved it; the last of several settings."""
    folder = Path(case.config["output_dir"]) / "before"
    script = Path(__file__).resolve().parents[1] / "script.py"
    settings = "+".join((*case.settings, "checkpointed"))
    words = ["--setting", settings, "--out", str(folder), "--seed", str(case.config["seed"])]
    words += ["--precision", "bf16" if case.config["bf16"] else "float32", "--model", case.model]
    subprocess.run([sys.executable, str(script), *words], check=True, stdout=subprocess.DEVNULL)
    return replace(case, checkpoint=str(folder / "checkpoint-2"))


SETTINGS: tuple[Setting, ...] = (
    told("reward-weights", reward_weights=[1.0, 0.2]),
    _rewarded("one-reward", answer_reward),
    _rewarded("rewards-without-a-value", of_two_digits, variety_reward),
    _rewarded("batch-relative-reward", rank_reward),
    _rewarded("rows-without-any-value", without_a_four, since="1.16.0"),
    _rewarded("async-reward", answer_reward, slow_reward, since="0.29.0"),
    _rewarded("reward-by-progress", curriculum, since="0.22.2"),
    _rewarded("reward-of-tokens", distinct),
    *map(setting, (reward_objects, reward_model)),
    *(_rewarded("negative-rewards", penalty), _rewarded("rare-reward", nine)),
    _asked("text-prompts", lambda prompt: f"Q: {prompt[-1]['content']} A:"),
    _asked("without-system-message", lambda prompt: prompt[1:]),
    _asked("several-turns", lambda prompt: [*_BEFORE, prompt[-1]]),
    setting(extra_columns),
    # six rows, so that the run goes through them several times
    Setting("few-rows", lambda case: replace(case, rows=case.rows[:6])),
    *map(setting, (evaluated, users_callback, own_optimizer)),
    *(told("seed-of-data", data_seed=7), setting(resumed)),
    setting(streamed_rows, since="1.16.0"),
)
