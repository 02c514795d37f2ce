"""Our GRPO trainer with an asymmetric clip and a KL term, carried over from the TRL 0.15 version of this script."""
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class LabTrainer(GRPOTrainer):
    """GRPO (per-sequence mean), written out so that we can log what we want."""

    def _compute_loss(self, model, inputs):
        prompt_ids, completion_ids = inputs["prompt_ids"], inputs["completion_ids"]
        completion_mask = inputs["completion_mask"]
        input_ids = torch.cat([prompt_ids, completion_ids], dim=1)
        attention_mask = torch.cat([inputs["prompt_mask"], completion_mask], dim=1)
        per_token_logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, completion_ids.size(1), compute_entropy=True
        )
        old = inputs.get("old_per_token_logps")
        old = per_token_logps.detach() if old is None else old
        ratio = torch.exp(per_token_logps - old)
        clipped = torch.clamp(ratio, 1 - self.epsilon_low, 1 + self.epsilon_high)
        advantages = inputs["advantages"].unsqueeze(1)
        per_token_loss = -torch.min(ratio * advantages, clipped * advantages)
        if self.beta:
            diff = inputs["ref_per_token_logps"] - per_token_logps
            kl = torch.exp(diff) - diff - 1
            per_token_loss = per_token_loss + self.beta * kl
            self._metrics["train"]["kl"].append(((kl * completion_mask).sum() / completion_mask.sum()).item())
        self._metrics["train"]["entropy"].append(
            ((entropies * completion_mask).sum() / completion_mask.sum()).item()
        )
        loss = ((per_token_loss * completion_mask).sum(dim=1) / completion_mask.sum(dim=1)).mean()
        return loss


def questions(n=64):
    rng = random.Random(0)
    for _ in range(n):
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        text = f"Cleo has {a} boxes with {b} cards each. How many cards does Cleo have?"
        yield {"prompt": [{"role": "user", "content": text}], "target": a * b}


def correct(completions, target, **kwargs):
    out = []
    for completion, value in zip(completions, target):
        numbers = [int(x) for x in re.findall(r"\d+", completion[0]["content"])[:3] if len(x) < 6]
        close = max([1.0 / (1 + abs(x - value)) for x in numbers], default=-0.2)
        out.append(close - 0.01 * len(completion[0]["content"]))
    return out


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=5e-5,
    loss_type="grpo",
    beta=0.04,
    use_bias_correction_kl=False,
    epsilon_high=0.28,
    bf16=False,
    use_cpu=True,
    logging_steps=1,
    report_to="none",
    save_strategy="no",
)
trainer = LabTrainer(
    model=os.path.join(HERE, "tiny"),
    reward_funcs=correct,
    args=args,
    train_dataset=Dataset.from_list(list(questions())),
)
trainer.train()
