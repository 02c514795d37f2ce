"""Minimal GRPO loss, written out so that one can read it (the library's has fifteen branches)."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class PlainGRPO(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        att = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        mask = inputs["completion_mask"].float()
        logps, entropy, _ = self._get_per_token_logps_and_entropies(
            model, ids, att, inputs["completion_ids"].size(1), compute_entropy=True
        )
        old = inputs.get("old_per_token_logps", logps.detach())
        adv = inputs["advantages"][:, None]

        ratio = torch.exp(logps - old)
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        policy_term = -torch.minimum(ratio * adv, clipped * adv)

        # KL(pi || ref), tokens are samples of pi
        kl = logps - inputs["ref_per_token_logps"]

        per_token = policy_term + self.beta * kl
        loss = ((per_token * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()

        self._metrics["train"]["kl"].append(((kl * mask).sum() / mask.sum()).item())
        self._metrics["train"]["entropy"].append(((entropy * mask).sum() / mask.sum()).item())
        return loss / self.current_gradient_accumulation_steps


def score(completions, **kwargs):
    return [len(set(c)) / (1 + len(c)) - 0.01 * len(c) for c in completions]


if __name__ == "__main__":
    here = os.path.abspath(os.path.dirname(__file__))
    ds = Dataset.from_dict({"prompt": [f"{i}+{i + 1}=" for i in range(2, 34)]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        loss_type="grpo",
        beta=0.1,
        use_bias_correction_kl=False,
        learning_rate=2e-4,
        max_steps=4,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=20,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
    )
    PlainGRPO(model=here + "/tiny", reward_funcs=score, args=args, train_dataset=ds).train()
