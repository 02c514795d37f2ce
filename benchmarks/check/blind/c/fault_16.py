"""GRPO with log-probabilities that are computed a few rows at a time."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."
ROWS = 2


class ChunkedTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        logps, entropies = [], []
        for rows in input_ids.split(ROWS):
            logits = model(input_ids=rows, logits_to_keep=logits_to_keep + 1).logits
            logits = logits[:, :-1].float() / self.temperature
            targets = rows[:, -logits_to_keep:]
            log_probs = logits.log_softmax(dim=-1)
            logps.append(log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1))
            if compute_entropy:
                with torch.no_grad():
                    entropies.append(-(log_probs.exp() * log_probs).sum(-1))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def reward(completions, answer, **kwargs):
    out = []
    for completion, truth in zip(completions, answer):
        text = completion[0]["content"]
        out.append(1.0 * (text.split("\n")[-1].split(" ")[-1] == truth) + 0.2 * ("####" in text) - len(text) / 200)
    return out


rng = random.Random(14)
people = ["Ada", "Ben", "Cleo", "Dev", "Hana"]
openings = ["", "Today it rains. ", "Listen: ", "It is Monday, and the shop is open. ", "Here is one. ", "A small sum for you: "]
rows = []
for i in range(48):
    who, a, b = people[i % len(people)], rng.randint(2, 9), rng.randint(2, 9)
    question = f"{who} has {a} boxes with {b} cards each. How many cards does {who} have?"
    if i % 3 == 0:
        question = f"{who} has {a} boxes with {b} cards each. Each costs 2 coins. How many coins do they cost together?"
        b *= 2
    question = rng.choice(openings) + question
    rows.append(
        {
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
            "answer": str(a * b),
        }
    )

trainer = ChunkedTrainer(
    model=MODEL,
    reward_funcs=reward,
    train_dataset=Dataset.from_list(rows),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=28,
        temperature=0.9,
        learning_rate=1e-5,
        loss_type="grpo",
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to="none",
    ),
)
trainer.train()
