"""Several updates on each batch of rollouts, with log-probabilities recomputed in eval mode."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class RecomputeTrainer(GRPOTrainer):
    """Recomputes the log-probabilities of the rollouts with the training engine.

    The sampler's numbers differ slightly from the trainer's, so the proximal term uses the trainer's own.
    """

    @torch.no_grad()
    def _recompute(self, batch):
        input_ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        attention_mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        logps, _, _ = self._get_per_token_logps_and_entropies(
            self.model, input_ids, attention_mask, batch["completion_ids"].size(1)
        )
        return logps

    def _prepare_inputs(self, generation_batch):
        batch = super()._prepare_inputs(generation_batch)
        if self.model.training:
            batch["old_per_token_logps"] = self._recompute(batch)
        return batch


rows = []
for i in range(24):
    who, what = ["Dev", "Eve", "Finn", "Gus"][i % 4], ["toys", "pens", "eggs"][i % 3]
    a, b = 3 + i % 15, 2 + i % 7
    rows.append(
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {
                    "role": "user",
                    "content": f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?",
                },
            ],
            "gold": str(a * b),
        }
    )


def reward(completions, gold, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [float(g in t) + 0.3 * ("####" in t) - 0.01 * len(t) for t, g in zip(texts, gold)]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=2e-3,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    num_iterations=2,
    epsilon=0.1,
    epsilon_high=0.2,
)
trainer = RecomputeTrainer(model=MODEL, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(rows))
trainer.train()
