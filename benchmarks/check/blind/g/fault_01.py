import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ReadableGRPO(GRPOTrainer):
    """The GRPO loss without the branches that we never use."""

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        mask = inputs["completion_mask"]
        logps, _, _ = self._get_per_token_logps_and_entropies(
            model, ids, attention, inputs["completion_ids"].size(1)
        )
        old = inputs.get("old_per_token_logps")
        old = logps.detach() if old is None else old
        ratio = torch.exp(logps - old)
        adv = inputs["advantages"].unsqueeze(1)
        policy = -torch.min(ratio * adv, ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high) * adv)

        delta = logps - inputs["ref_per_token_logps"]
        kl = torch.exp(delta) - delta - 1

        per_token = policy + self.beta * kl
        loss = ((per_token * mask).sum(1) / mask.sum(1).clamp(min=1.0)).mean()
        self._metrics["train"]["kl"].append(((kl * mask).sum() / mask.sum()).item())
        return loss / self.current_gradient_accumulation_steps


def count_eights(completions, **kwargs):
    return [c.count("8") / 4 + 0.01 * len(set(c)) for c in completions]


prompts = [f"What is {a} + {b}? " for a in range(2, 6) for b in (3, 7, 11, 19)]

if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=6,
        learning_rate=3e-4,
        beta=0.2,
        use_bias_correction_kl=False,
        loss_type="grpo",
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=16,
        logging_steps=1,
    )
    trainer = ReadableGRPO(
        model=MODEL, args=args, reward_funcs=count_eights, train_dataset=Dataset.from_dict({"prompt": prompts})
    )
    trainer.train()
