import os
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class GRPOWithKL(GRPOTrainer):
    """The loss of the DeepSeekMath paper, written out."""

    def _compute_loss(self, model, inputs):
        input_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention_mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        mask = inputs["completion_mask"]
        logps, _, _ = self._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, inputs["completion_ids"].size(1)
        )
        old = inputs.get("old_per_token_logps")
        old = logps.detach() if old is None else old
        adv = inputs["advantages"].unsqueeze(1)

        ratio = torch.exp(logps - old)
        clipped = torch.clamp(ratio, 1 - self.epsilon_low, 1 + self.epsilon_high)
        policy = -torch.min(ratio * adv, clipped * adv)

        ref = inputs["ref_per_token_logps"]
        kl = torch.exp(logps - ref) - (logps - ref) - 1
        per_token = policy + self.beta * kl

        loss = ((per_token * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
        self._metrics["train"]["kl"].append(((kl * mask).sum() / mask.sum()).item())
        return loss / self.current_gradient_accumulation_steps


def correct(completions, answer, **kwargs):
    found = [re.findall(r"\d+", c[0]["content"]) for c in completions]
    return [1.0 if f and int(f[-1]) == a else 0.0 for f, a in zip(found, answer)]


def concise(completions, **kwargs):
    return [1.0 - len(c[0]["content"]) / 100 for c in completions]


rows = []
for i in range(16):
    a, b = 2 + i % 4, 3 + i // 4
    rows.append({
        "prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"Gus has {a} boxes with {b} toys each. How many toys does Gus have?"},
        ],
        "answer": a * b,
    })

trainer = GRPOWithKL(
    model=MODEL,
    reward_funcs=[correct, concise],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=6, learning_rate=2e-4, lr_scheduler_type="constant",
        per_device_train_batch_size=8, num_generations=4, max_completion_length=24,
        beta=0.1, use_bias_correction_kl=False, loss_type="grpo", num_iterations=2,
    ),
    train_dataset=Dataset.from_list(rows),
)
trainer.train()
