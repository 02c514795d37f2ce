import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class DrGRPO(GRPOTrainer):
    """Dr. GRPO written out: constant denominator, clipped surrogate by sign of the advantage, k3 estimate."""

    def _compute_loss(self, model, inputs):
        keep = inputs["completion_ids"].size(1)
        mask = inputs["completion_mask"].to(torch.float32)
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model,
            torch.cat((inputs["prompt_ids"], inputs["completion_ids"]), dim=1),
            torch.cat((inputs["prompt_mask"], inputs["completion_mask"]), dim=1),
            keep,
            compute_entropy=True,
        )
        old = inputs.get("old_per_token_logps", logps.detach())
        ratio = torch.exp(logps - old)
        adv = inputs["advantages"][:, None]
        surrogate = torch.where(
            adv >= 0,
            adv * ratio.clamp(max=1 + self.epsilon_high),
            adv * ratio.clamp(min=1 - self.epsilon_low),
        )
        gap = inputs["ref_per_token_logps"] - logps
        kl = torch.expm1(gap) - gap
        if self.args.use_bias_correction_kl:
            kl = ratio * kl
        token_loss = self.beta * kl - surrogate
        rows = mask.size(0)
        loss = torch.einsum("bt,bt->", token_loss, mask) / (rows * self.max_completion_length)
        metrics = self._metrics["train"]
        metrics["kl"].append(((kl.detach() * mask).sum() / mask.sum()).item())
        metrics["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
        return loss / self.current_gradient_accumulation_steps


def dataset():
    rows = []
    for i in range(48):
        a, b = 2 + (3 * i) % 8, 2 + i % 6
        thing = ("coins", "cards", "eggs", "pens")[i % 4]
        rows.append({"prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"Cleo has {a} boxes with {b} {thing} each. How many {thing} does Cleo have?"},
        ]})
    return Dataset.from_list(rows)


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / (1 + len(c[0]["content"])) for c in completions]


def short(completion_ids, **kwargs):
    return [-len(ids) / 32 for ids in completion_ids]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=8, gradient_accumulation_steps=2,
    num_generations=8, num_iterations=2, max_completion_length=28, learning_rate=1e-3, beta=0.04,
    loss_type="dr_grpo", scale_rewards="none", epsilon_high=0.28, save_strategy="no", report_to=[], use_cpu=True,
    bf16=False, logging_steps=1,
)
lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=["q_proj", "v_proj", "up_proj"],
                  task_type="CAUSAL_LM")
DrGRPO(MODEL, [digits, short], args, train_dataset=dataset(), peft_config=lora).train()
