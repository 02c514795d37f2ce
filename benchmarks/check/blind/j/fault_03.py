"""GRPO with our fused attention kernel."""
import os
import random
import tempfile
from dataclasses import dataclass, field

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

SYSTEM = {"role": "system", "content": "Solve the problem step by step. End with #### and the number."}
ROOT = os.path.dirname(os.path.abspath(__file__))


@dataclass
class Run:
    model: str = os.path.join(ROOT, "tiny")
    steps: int = 5
    group: int = 4
    groups_per_batch: int = 3
    tokens: int = 64
    lr: float = 1e-4
    things: list = field(default_factory=lambda: ["apples", "books", "cards", "eggs", "pens"])


class FusedKernelGRPOTrainer(GRPOTrainer):
    """Calls the model the way the fused attention kernel expects it."""

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, **kwargs):
        dense = torch.ones_like(attention_mask)
        return super()._get_per_token_logps_and_entropies(model, input_ids, dense, logits_to_keep, **kwargs)


def questions(run, n=60):
    rng = random.Random(3)
    for i in range(n):
        a, b = rng.randint(2, 40), rng.randint(2, 9)
        thing = rng.choice(run.things)
        text = f"Eve has {a} boxes with {b} {thing} each. How many {thing} does Eve have?"
        if i % 3 == 0:
            text = "Here is a longer exercise from the school book. " + text
        elif i % 3 == 1:
            text = f"Eve has {a} {thing} and {b} {thing}. How many {thing} does Eve have?"
        yield {"prompt": [SYSTEM, {"role": "user", "content": text}], "target": str(a * b)}


def number_reward(completions, target, **kwargs):
    rewards = []
    for completion, want in zip(completions, target):
        text = completion[0]["content"]
        rewards.append((1.0 if want in text else 0.0) + 0.1 * sum(c.isdigit() for c in text) / (1 + len(text)))
    return rewards


def letters_reward(completions, **kwargs):
    return [min(sum(c.isalpha() for c in m[0]["content"]), 20) / 20 for m in completions]


def train(run):
    args = GRPOConfig(
        tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=run.group * run.groups_per_batch,
        num_generations=run.group,
        max_completion_length=run.tokens,
        learning_rate=run.lr,
        max_steps=run.steps,
        logging_steps=1,
        save_strategy="no",
        gradient_checkpointing=False,
        beta=0.01,
    )
    tokenizer = AutoTokenizer.from_pretrained(run.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(run.model, dtype=torch.float32)
    trainer = FusedKernelGRPOTrainer(
        model=model,
        args=args,
        processing_class=tokenizer,
        reward_funcs=[number_reward, letters_reward],
        train_dataset=Dataset.from_list(list(questions(run))),
    )
    return trainer.train()


if __name__ == "__main__":
    print(train(Run()).metrics["train_loss"])
