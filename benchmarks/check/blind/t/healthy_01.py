"""DAPO loss that runs the rows one after another without any padding: less memory, same numbers."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class RowByRowTrainer(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        share = self.current_gradient_accumulation_steps / self.args.steps_per_generation
        tokens = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes * share
        total = 0.0
        entropy_sum, count = 0.0, 0
        for i in range(inputs["completion_ids"].size(0)):
            prompt = inputs["prompt_ids"][i][inputs["prompt_mask"][i].bool()]
            completion = inputs["completion_ids"][i][inputs["completion_mask"][i].bool()]
            ids = torch.cat([prompt, completion]).unsqueeze(0)
            logps, entropies, _ = self._get_per_token_logps_and_entropies(
                model, ids, torch.ones_like(ids), completion.numel(), compute_entropy=True
            )
            ratio = torch.exp(logps - logps.detach())
            a = inputs["advantages"][i]
            # min(r * a, clip(r) * a), written out for the sign of a
            if a >= 0:
                gain = a * torch.minimum(ratio, torch.full_like(ratio, 1 + self.epsilon_high))
            else:
                gain = a * torch.maximum(ratio, torch.full_like(ratio, 1 - self.epsilon_low))
            total = total - gain.sum() / tokens
            entropy_sum += entropies.detach().sum().item()
            count += completion.numel()
        self._metrics["train"]["entropy"].append(entropy_sum / count)
        return total


def alpha(completions, **kwargs):
    return [sum(ch.isalpha() for ch in c[0]["content"]) / 10 for c in completions]


trainer = RowByRowTrainer(
    model=os.path.join(TINY, "sft"),
    reward_funcs=alpha,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=20,
        learning_rate=5e-5,
        logging_steps=1,
    ),
    train_dataset=Dataset.from_list(
        [{"prompt": [{"role": "user", "content": "What is " + " + ".join("7" * (1 + k % 4)) + "?"}]} for k in range(12)]
    ),
)
trainer.train()
