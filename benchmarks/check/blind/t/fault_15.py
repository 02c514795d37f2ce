"""GRPO with a loss in one place, without the branches that we do not use (token level, DAPO, KL to the reference)."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class OneLossTrainer(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        mask = inputs["completion_mask"]
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids, attention, mask.size(1), compute_entropy=True
        )
        old = inputs.get("old_per_token_logps")
        ratio = torch.exp(logps - (logps.detach() if old is None else old))
        advantages = inputs["advantages"].unsqueeze(1)
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        policy = -torch.min(ratio * advantages, clipped * advantages)

        difference = logps - inputs["ref_per_token_logps"]
        kl = torch.exp(difference) - difference - 1  # k3

        share = self.current_gradient_accumulation_steps / self.args.steps_per_generation
        tokens = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes * share
        self._metrics["train"]["kl"].append(((kl * mask).sum() / mask.sum()).item())
        self._metrics["train"]["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
        return ((policy + self.beta * kl) * mask).sum() / tokens


def repeats(completions, **kwargs):
    return [len(set(c[0]["content"])) / 16 for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=3,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_generations=4,
    max_completion_length=16,
    learning_rate=2e-4,
    beta=0.2,
    loss_type="dapo",
    epsilon_high=0.28,
    logging_steps=1,
)
trainer = OneLossTrainer(
    model=TINY,
    reward_funcs=repeats,
    args=args,
    train_dataset=Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"List {k} animals."}]} for k in range(2, 18)]
    ),
)
trainer.train()
