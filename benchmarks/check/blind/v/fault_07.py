"""GRPO with the adaptive KL coefficient of Ziegler et al. (2019)."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class AdaptiveKLTrainer(GRPOTrainer):
    kl_target = 0.02
    kl_horizon = 10

    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        logps, entropies, aux = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        if torch.is_grad_enabled():
            self._current_logps = logps.detach()
        return logps, entropies, aux

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        delta = inputs["ref_per_token_logps"] - self._current_logps
        mask = inputs["completion_mask"]
        self._observed_kl = (((delta.exp() - delta - 1) * mask).sum() / mask.sum()).item()
        return loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        error = self._observed_kl / self.kl_target - 1
        self.beta *= 1 + error / self.kl_horizon
        return loss


def count_fours(completions, **kwargs):
    return [min(c[0]["content"].count("4"), 3) / 3 for c in completions]


def not_long(completion_ids, **kwargs):
    return [-0.05 * len(ids) for ids in completion_ids]


def main():
    rows = [{"prompt": [{"role": "user", "content": f"What is {n} + {n % 5}?"}]} for n in range(36)]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=16,
        beta=0.1,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        model_init_kwargs={"dtype": "float32"},
    )
    trainer = AdaptiveKLTrainer(
        model=MODEL, reward_funcs=[count_fours, not_long], args=args, train_dataset=Dataset.from_list(rows)
    )
    trainer.train()
    print(f"rank {args.process_index}: beta at the end {trainer.beta:.5f}")


if __name__ == "__main__":
    main()
