"""GRPO with our chunked log-probability code, which needs less memory than the logits of the whole batch."""
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


def token_scores(logits, labels, with_entropy):
    logp = torch.log_softmax(logits.float(), dim=-1)
    picked = logp.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    entropy = -(logp.exp() * logp).sum(-1) if with_entropy else None
    return picked, entropy


class ChunkedTrainer(GRPOTrainer):
    rows_per_chunk = 2

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        logps, entropies = [], []
        for start in range(0, input_ids.size(0), self.rows_per_chunk):
            ids = input_ids[start : start + self.rows_per_chunk]
            mask = attention_mask[start : start + self.rows_per_chunk]
            logits = model(input_ids=ids, attention_mask=mask, logits_to_keep=logits_to_keep + 1).logits
            picked, entropy = token_scores(logits[:, :-1], ids[:, -logits_to_keep:], compute_entropy)
            logps.append(picked)
            entropies.append(entropy)
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def accuracy(completions, answer, **kwargs):
    found = [re.findall(r"\d+", c[0]["content"]) for c in completions]
    return [1.0 if f and f[-1] == a else 0.0 for f, a in zip(found, answer)]


def has_number(completions, **kwargs):
    return [0.5 * bool(re.search(r"\d", c[0]["content"])) for c in completions]


def variety(completions, **kwargs):
    return [len(set(c[0]["content"])) / (1 + len(c[0]["content"])) for c in completions]


rng = random.Random(4)
rows = []
for _ in range(48):
    a, b = rng.randint(2, 30), rng.randint(2, 30)
    rows.append({"prompt": [{"role": "user", "content": f"What is {a} + {b}?"}], "answer": str(a + b)})

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    num_iterations=2,
    max_completion_length=24,
    temperature=0.7,
    max_steps=4,
    learning_rate=1e-4,
    loss_type="dapo",
    epsilon_high=0.28,
    bf16=False,
    use_cpu=True,
    logging_steps=1,
    report_to="none",
    save_strategy="no",
)
trainer = ChunkedTrainer(
    model=os.path.join(HERE, "tiny"),
    reward_funcs=[accuracy, has_number, variety],
    args=args,
    train_dataset=Dataset.from_list(rows),
)
trainer.train()
