"""GRPO with the loss written out for our fused / compiled kernels (one function of plain tensors)."""
import os
import tempfile
from dataclasses import dataclass

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class LossConfig:
    beta: float = 0.2
    eps_low: float = 0.2
    eps_high: float = 0.2


def grpo_loss(logps, old_logps, ref_logps, advantages, mask, beta: float, eps_low: float, eps_high: float):
    """Clipped surrogate plus the k3 estimate of the KL to the reference, averaged per sequence, then over the rows."""
    ratio = torch.exp(logps - old_logps)
    adv = advantages.unsqueeze(1)
    surrogate = torch.minimum(ratio * adv, ratio.clamp(1 - eps_low, 1 + eps_high) * adv)
    log_ratio = logps - ref_logps
    k3 = torch.exp(log_ratio) - log_ratio - 1
    per_token = -surrogate + beta * k3
    per_row = (per_token * mask).sum(-1) / mask.sum(-1).clamp(min=1)
    kl = (k3 * mask).sum() / mask.sum().clamp(min=1)
    return per_row.mean(), kl


class PlainLossTrainer(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        keep = inputs["completion_ids"].size(1)
        logps, entropies, _ = self._get_per_token_logps_and_entropies(model, ids, attention, keep, compute_entropy=True)
        old = inputs.get("old_per_token_logps")
        mask = inputs["completion_mask"]
        loss, kl = grpo_loss(
            logps,
            logps.detach() if old is None else old,
            inputs["ref_per_token_logps"],
            inputs["advantages"],
            mask,
            self.beta,
            self.epsilon_low,
            self.epsilon_high,
        )
        mode = "train" if self.model.training else "eval"
        self._metrics[mode]["kl"].append(self.accelerator.gather(kl.detach()).mean().item())
        mean_entropy = (entropies * mask).sum() / mask.sum().clamp(min=1)
        self._metrics[mode]["entropy"].append(self.accelerator.gather(mean_entropy.detach()).mean().item())
        return loss / (self.current_gradient_accumulation_steps if mode == "train" else 1)


def brevity(completion_ids, **kwargs):
    return [-len(ids) / 20 for ids in completion_ids]


def spread(completion_ids, **kwargs):
    return [(max(ids) - min(ids)) / 500 for ids in completion_ids]


def main():
    cfg = LossConfig()
    data = Dataset.from_list(
        [
            {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Write a sentence about {w}."}]}
            for w in ("plums", "peas", "figs", "corn", "rice", "oats", "kale", "dates")
        ]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=20,
        loss_type="grpo",
        beta=cfg.beta,
        epsilon=cfg.eps_low,
        epsilon_high=cfg.eps_high,
        use_bias_correction_kl=False,
        max_steps=4,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=43,
    )
    trainer = PlainLossTrainer(
        model=os.path.join(HERE, "tiny"), reward_funcs=[brevity, spread], args=args, train_dataset=data
    )
    trainer.train()
    print("kl:", [round(h["kl"], 4) for h in trainer.state.log_history if "kl" in h])


if __name__ == "__main__":
    main()
