"""Memory saver: every forward is cut to the columns that it needs, and run in small chunks."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def left_padding(attention_mask, keep_last):
    """Number of leading columns without a token, not counting the completion's columns."""
    prompt = attention_mask[:, : attention_mask.size(1) - keep_last]
    first_token = prompt.long().argmax(dim=1)
    return int(first_token.max())


class TrimmedForwardTrainer(GRPOTrainer):
    forward_chunk = 8

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        logps, entropies = [], []
        for ids, mask in zip(input_ids.split(self.forward_chunk), attention_mask.split(self.forward_chunk)):
            start = left_padding(mask, logits_to_keep)
            lp, ent, _ = super()._get_per_token_logps_and_entropies(
                model, ids[:, start:], mask[:, start:], logits_to_keep, compute_entropy=compute_entropy
            )
            logps.append(lp)
            entropies.append(ent)
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def make_question(rng):
    names = rng.sample(["Ada", "Ben", "Cleo", "Hana"], rng.randint(1, 4))
    what = rng.choice(["apples", "books", "stamps"])
    facts = [f"{who} has {rng.randint(2, 9)} boxes with {rng.randint(10, 99)} {what} each." for who in names]
    return " ".join(facts) + f" How many {what} does {names[-1]} have?"


def reward_digits(completions, **kwargs):
    return [sum(c.isdigit() for c in x[0]["content"]) / 10 for x in completions]


def reward_stop(completion_ids, **kwargs):
    return [0.5 if len(ids) < 24 else 0.0 for ids in completion_ids]


if __name__ == "__main__":
    rng = random.Random(13)
    dataset = Dataset.from_list([{"prompt": [{"role": "user", "content": make_question(rng)}]} for _ in range(32)])
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=1e-4,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    TrimmedForwardTrainer(
        model=MODEL, reward_funcs=[reward_digits, reward_stop], args=args, train_dataset=dataset
    ).train()
