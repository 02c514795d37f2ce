"""A user's script of GRPOTrainer, for any of TRL's releases: `script.py OUT [name=value ...]`, fields of GRPOConfig.

Prompts are of several lengths, so that there is padding that a trainer can get wrong.
"""

import json
import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = str(Path(__file__).resolve().parents[2] / "models" / "tiny")
GROUP, ROLLOUTS = 4, 32


def length_and_answer(completions: Any, answer: Any, **_: Any) -> list[float]:
    """Return a reward that differs within groups of the tiny model."""
    texts = [completion[0]["content"] for completion in completions]
    return [len(t) % 5 + float(a in t) for t, a in zip(texts, answer, strict=True)]


def rows() -> list[dict[str, Any]]:
    """Return sums, one question in four asked twice."""
    asked = [f"What is {a} plus {b}?" for a in range(8) for b in range(8)]
    texts = [text if n % 4 else f"{text} {text}" for n, text in enumerate(asked)]
    answers = [str(a + b) for a in range(8) for b in range(8)]
    return [
        {"prompt": [{"role": "user", "content": text}], "answer": answer}
        for text, answer in zip(texts, answers, strict=True)
    ]


told = {"gradient_accumulation_steps": 2, "temperature": 1.0}
told |= {name: json.loads(value) for name, _, value in (w.partition("=") for w in sys.argv[2:])}
# until a sampler of TRL's own repeated each prompt, a batch was counted in prompts
each = ROLLOUTS if "_get_train_sampler" in vars(GRPOTrainer) else ROLLOUTS // GROUP
trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=[length_and_answer],
    args=GRPOConfig(
        output_dir=sys.argv[1],
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        max_steps=3,
        learning_rate=1e-3,
        per_device_train_batch_size=each // told["gradient_accumulation_steps"],
        num_generations=GROUP,
        max_completion_length=16,
        **told,
    ),
    train_dataset=Dataset.from_list(rows()),
    processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
)
trainer.train()
