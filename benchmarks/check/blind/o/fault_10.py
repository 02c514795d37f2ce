"""PPO-style reuse of rollouts (two passes). Old log-probabilities are computed per micro-batch,
so that they have the same shapes and numerics as the training forward."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class TwoPassTrainer(GRPOTrainer):
    def _prepare_inputs(self, generation_batch):
        batch = dict(super()._prepare_inputs(generation_batch))
        if not self.model.training:
            return batch
        input_ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        attention_mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        with torch.no_grad():
            old, _, _ = self._get_per_token_logps_and_entropies(
                self.model, input_ids, attention_mask, batch["completion_ids"].size(1)
            )
        batch["old_per_token_logps"] = old
        return batch


def reward_even_digits(completions, **kwargs):
    return [float(sum(c in "02468" for c in x[0]["content"])) for x in completions]


if __name__ == "__main__":
    rng = random.Random(4)
    dataset = Dataset.from_list(
        [
            {
                "prompt": [
                    {
                        "role": "user",
                        "content": f"Hana has {rng.randint(2, 9)} boxes with {rng.randint(10, 99)} books each. "
                        "How many books does Hana have?",
                    }
                ]
            }
            for _ in range(32)
        ]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        num_iterations=2,
        max_completion_length=20,
        max_steps=4,
        learning_rate=3e-4,
        lr_scheduler_type="constant",
        epsilon=0.1,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    TwoPassTrainer(model=MODEL, reward_funcs=reward_even_digits, args=args, train_dataset=dataset).train()
