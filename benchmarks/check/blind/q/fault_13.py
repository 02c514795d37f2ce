"""GRPO with experience replay: every second batch trains on the rollouts of the batch before."""
import os
import random
import tempfile
from collections import deque

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
ROLLOUT_KEYS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "old_per_token_logps")


class ReplayTrainer(GRPOTrainer):
    """Keeps the last rollouts and, every `replay_every` steps, trains on the oldest of them instead."""

    replay_every = 2

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.memory = deque(maxlen=4)

    @torch.no_grad()
    def _policy_logps(self, batch):
        """Log-probabilities at the time of sampling, for the importance weights of a later replay."""
        input_ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        attention_mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        return self._get_per_token_logps_and_entropies(
            self.model, input_ids, attention_mask, batch["completion_ids"].size(1)
        )[0]

    def _prepare_inputs(self, generation_batch):
        batch = super()._prepare_inputs(generation_batch)
        if not self.model.training:
            return batch
        batch = dict(batch, old_per_token_logps=self._policy_logps(batch))
        stored = {key: value.clone() for key, value in batch.items() if isinstance(value, torch.Tensor)}
        if self.memory and self.state.global_step % self.replay_every == 1:
            old = self.memory.popleft()
            for key in ROLLOUT_KEYS:
                batch[key] = old[key]
            batch["num_items_in_batch"] = batch["completion_mask"].sum()
            self._metrics["train"]["replayed"].append(1.0)
        else:
            self._metrics["train"]["replayed"].append(0.0)
        self.memory.append(stored)
        return batch


rng = random.Random(8)
rows = []
for _ in range(32):
    a, b, what = rng.randint(3, 20), rng.randint(2, 9), rng.choice(["eggs", "toys", "pens"])
    rows.append(
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Gus has {a} boxes with {b} {what} each. How many {what} does Gus have?"},
            ],
            "result": a * b,
            "what": what,
        }
    )


def reward(completions, result, what, **kwargs):
    scores = []
    for completion, number, noun in zip(completions, result, what):
        text = completion[0]["content"]
        scores.append(1.0 * (str(number) in text) + 0.3 * (noun in text) + 0.2 * ("####" in text) - 0.003 * len(text))
    return scores


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=1e-3,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    temperature=1.1,
)
trainer = ReplayTrainer(model=MODEL, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(rows))
trainer.train()
