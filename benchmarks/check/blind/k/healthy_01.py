import os, tempfile
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class MyDrGRPO(GRPOTrainer):
    """The same loss as loss_type="dr_grpo", written out, to add my own logging later."""

    def _compute_loss(self, model, inputs):
        mask = inputs["completion_mask"]
        ids = torch.cat((inputs["prompt_ids"], inputs["completion_ids"]), dim=1)
        attention = torch.cat((inputs["prompt_mask"], mask), dim=1)
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids, attention, mask.size(1), compute_entropy=True
        )
        old = inputs["old_per_token_logps"] if "old_per_token_logps" in inputs else logps.detach()
        ratio = torch.exp(logps - old)
        clipped = torch.clamp(ratio, 1 - self.epsilon_low, 1 + self.epsilon_high)
        adv = inputs["advantages"][:, None]
        token_loss = torch.maximum(-ratio * adv, -clipped * adv)
        loss = (token_loss * mask).sum() / (mask.size(0) * self.max_completion_length)
        self._metrics["train"]["ratio_max"].append((ratio * mask).max().item())
        self._metrics["train"]["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
        return loss / self.current_gradient_accumulation_steps


def reward(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c) / 10 for c in completions]


MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
prompts = [f"{a} and {b} make" for a in range(1, 8) for b in range(1, 8)]
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), loss_type="dr_grpo", scale_rewards=False, num_iterations=2, learning_rate=2e-4,
    max_steps=6, num_generations=8, per_device_train_batch_size=4, gradient_accumulation_steps=2,
    max_completion_length=24, use_cpu=True, bf16=False, report_to=[], logging_steps=1, save_strategy="no",
)
MyDrGRPO(MODEL, reward, args=args, train_dataset=Dataset.from_dict({"prompt": prompts})).train()
