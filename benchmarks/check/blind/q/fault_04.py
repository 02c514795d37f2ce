"""GRPO with a presence penalty during rollouts, against loops of a small model."""
import functools
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class PresencePenalty(LogitsProcessor):
    """Subtracts a constant from every token that the rollout already contains."""

    def __init__(self, penalty, special_ids):
        self.penalty = penalty
        self.special_ids = torch.tensor(sorted(special_ids))

    def __call__(self, input_ids, scores):
        present = torch.zeros_like(scores)
        present.scatter_(1, input_ids, 1.0)
        present[:, self.special_ids] = 0.0
        return scores - self.penalty * present


tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
processors = LogitsProcessorList([PresencePenalty(2.5, tokenizer.all_special_ids)])
model.generate = functools.partial(model.generate, logits_processor=processors)

things = ["eggs", "pens", "toys", "books", "cards", "apples"]
names = ["Hana", "Gus", "Finn", "Eve"]
rows = [
    {
        "prompt": [
            {"role": "user", "content": f"{names[i % 4]} has {3 + i} boxes with {2 + i % 7} {things[i % 6]} each."},
        ]
    }
    for i in range(20)
]


def no_loops(completions, **kwargs):
    scores = []
    for completion in completions:
        text = completion[0]["content"]
        pairs = [text[i : i + 2] for i in range(len(text) - 1)]
        scores.append(len(set(pairs)) / max(len(pairs), 1))
    return scores


def brevity(completion_ids, **kwargs):
    return [-0.02 * len(ids) for ids in completion_ids]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=28,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    beta=0.01,
)
trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[no_loops, brevity],
    args=args,
    train_dataset=Dataset.from_list(rows),
)
trainer.train()
