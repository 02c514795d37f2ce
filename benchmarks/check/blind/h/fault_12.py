import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class MyGRPO(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attn = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        mask = inputs["completion_mask"]
        logp, entropy, _ = self._get_per_token_logps_and_entropies(
            model, ids, attn, mask.size(1), compute_entropy=True
        )
        old = inputs.get("old_per_token_logps")
        if old is None:
            old = logp.detach()
        adv = inputs["advantages"][:, None]

        ratio = (logp - old).exp()
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        surrogate = torch.maximum(ratio * adv, clipped * adv)

        per_row = -(surrogate * mask).sum(1) / mask.sum(1).clamp(min=1)
        self._metrics["train"]["entropy"].append((entropy * mask).sum().item() / mask.sum().item())
        self._metrics["train"]["clip_frac"].append(((ratio != clipped) * mask).sum().item() / mask.sum().item())
        return per_row.mean() / self.current_gradient_accumulation_steps


tiny = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
data = Dataset.from_dict({"prompt": [f"({a}+{b})/2=" for a in range(1, 6) for b in range(1, 6)]})

trainer = MyGRPO(
    model=tiny,
    reward_funcs=lambda completions, **kw: [sum(map(str.isdigit, c)) - 0.3 * c.count("4") for c in completions],
    train_dataset=data,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        loss_type="grpo", num_iterations=4, epsilon=0.1, learning_rate=2e-3, lr_scheduler_type="constant",
        per_device_train_batch_size=8, num_generations=8, max_completion_length=12, max_steps=8, logging_steps=1,
    ),
)
trainer.train()
