"""Log-probabilities from the plain logits, with explicit position ids (our attention kernel wants them)."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class PlainLogitsTrainer(GRPOTrainer):
    rows_per_forward = 3

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        logps, entropies = [], []
        for start in range(0, input_ids.size(0), self.rows_per_forward):
            ids = input_ids[start : start + self.rows_per_forward]
            mask = attention_mask[start : start + self.rows_per_forward]
            position_ids = (mask.long().cumsum(-1) - 1).clamp(min=0)
            out = model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=position_ids,
                use_cache=False,
                logits_to_keep=logits_to_keep + 1,
            )
            logits = out.logits[:, :-1].float() / self.temperature
            targets = ids[:, -logits_to_keep:]
            log_z = logits.logsumexp(-1)
            picked = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
            logps.append(picked - log_z)
            if compute_entropy:
                with torch.no_grad():
                    p = (logits - log_z.unsqueeze(-1)).exp()
                    entropies.append(log_z - (p * logits).sum(-1))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def question(rng):
    who, what = rng.choice(["Ada", "Ben", "Cleo"]), rng.choice(["apples", "books", "pens"])
    text = f"{who} has {rng.randint(2, 9)} boxes with {rng.randint(10, 99)} {what} each."
    if rng.random() < 0.5:
        text = f"Eve has {rng.randint(2, 9)} boxes with 12 {what} each. " + text
    if rng.random() < 0.5:
        return f"{text} Each costs {rng.randint(2, 9)} coins. How many coins do they cost together?"
    return f"{text} How many {what} does {who} have?"


def digits(completions, **kwargs):
    return [sum(c.isdigit() for c in x[0]["content"]) / 5 for x in completions]


if __name__ == "__main__":
    rng = random.Random(1)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        num_iterations=2,
        temperature=0.8,
        beta=0.05,
        loss_type="dr_grpo",
        scale_rewards="none",
        max_completion_length=24,
        max_steps=4,
        learning_rate=1e-4,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    PlainLogitsTrainer(
        model=MODEL,
        reward_funcs=digits,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": question(rng)}]} for _ in range(32)]),
    ).train()
