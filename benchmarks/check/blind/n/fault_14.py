"""GRPO at a low temperature, with log-probabilities in row chunks to save memory."""
import os
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def token_logps(logits, ids):
    """log softmax gathered at `ids`, one row at a time."""
    out = []
    for row_logits, row_ids in zip(logits, ids):
        row_logps = torch.log_softmax(row_logits.float(), dim=-1)
        out.append(torch.gather(row_logps, dim=-1, index=row_ids.unsqueeze(-1)).squeeze(-1))
    return torch.stack(out)


def token_entropies(logits):
    out = []
    for row_logits in logits:
        row_logps = torch.log_softmax(row_logits.float(), dim=-1)
        out.append(-(row_logps.exp() * row_logps).sum(-1))
    return torch.stack(out)


class ChunkedTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        batch_size = batch_size or input_ids.size(0)
        logps, entropies = [], []
        for start in range(0, input_ids.size(0), batch_size):
            ids = input_ids[start : start + batch_size]
            mask = attention_mask[start : start + batch_size]
            logits = model(
                input_ids=ids, attention_mask=mask, logits_to_keep=logits_to_keep + 1, use_cache=False
            ).logits
            logits = logits[:, :-1]
            logps.append(token_logps(logits, ids[:, -logits_to_keep:]))
            if compute_entropy:
                with torch.no_grad():
                    entropies.append(token_entropies(logits))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def check_answer(completions, answer, **kwargs):
    rewards = []
    for completion, value in zip(completions, answer):
        text = completion[0]["content"]
        numbers = re.findall(r"\d+", text)
        rewards.append((1.0 if numbers and numbers[-1] == str(value) else 0.0) + 0.02 * len(text))
    return rewards


def main():
    rows = []
    for i, (who, what) in enumerate([("Ada", "eggs"), ("Ben", "toys"), ("Eve", "books"), ("Gus", "cards")] * 2):
        a, b = 11 + i, 18 - i
        content = f"{who} has {a} boxes with {b} {what} each. Each costs {3 + i} coins. How many coins do they cost together?"
        rows.append(
            {
                "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}],
                "answer": a * b * (3 + i),
            }
        )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=28,
        temperature=0.7,
        gradient_checkpointing=False,
        learning_rate=5e-5,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    ChunkedTrainer(MODEL, check_answer, args, train_dataset=Dataset.from_list(rows)).train()


if __name__ == "__main__":
    main()
