"""What the scripts of this folder share: sums, a reward that differs within groups, and the tiny model."""

import json
import tempfile
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer

MODEL = str(Path(__file__).resolve().parents[3] / "models" / "tiny")
GROUP = 4
COMMON: dict[str, Any] = {
    "output_dir": tempfile.gettempdir(),
    "use_cpu": True,
    "bf16": False,
    "report_to": [],
    "save_strategy": "no",
    "disable_tqdm": True,
    "max_steps": 3,
    "learning_rate": 1e-3,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_generations": GROUP,
    "max_completion_length": 16,
}


def texts(completions: Any) -> list[str]:
    return [each[0]["content"] if isinstance(each, list) else each for each in completions]


def length_and_answer(completions: Any, answer: Any, **_: Any) -> list[float]:
    """Return a reward that differs within groups of the tiny model."""
    pairs = zip(texts(completions), answer, strict=True)
    return [len(text) % 5 + float(right in text) for text, right in pairs]


def rows(count: int = 64) -> Any:
    """Return sums as conversations."""
    pairs = [divmod(number, 8) for number in range(count)]
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": f"What is {a} plus {b}?"}],
                "answer": str(a + b),
            }
            for a, b in pairs
        ]
    )


def settings(words: Any) -> dict[str, Any]:
    """Return what `name=value ...` says, each value in JSON."""
    return {name: json.loads(value) for name, _, value in (word.partition("=") for word in words)}


def told() -> dict[str, Any]:
    """Return what a trainer is given beside its arguments."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    data = {"train_dataset": rows(), "processing_class": tokenizer}
    return {"model": MODEL, "reward_funcs": length_and_answer, **data}
