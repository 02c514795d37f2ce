"""GRPO with the DAPO loss and its KL term written out by hand, term by term."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset(n=48):
    rng = random.Random(101)
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"What is {rng.randint(2, 99)} plus {rng.randint(2, 99)}?"}]} for _ in range(n)]
    )


def digits(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch.isdigit() for ch in t) / (len(t) + 2) - 0.01 * len(t) for t in texts]


class HandWrittenLoss(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        mask = inputs["completion_mask"]
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], mask], dim=1)
        logp, entropy, _ = self._get_per_token_logps_and_entropies(model, ids, attention, mask.size(1), compute_entropy=True)
        old = inputs["old_per_token_logps"] if "old_per_token_logps" in inputs else logp.detach()

        ratio = (logp - old).exp()
        gain = inputs["advantages"][:, None]
        surrogate = torch.where(
            gain >= 0,
            torch.clamp(ratio, max=1 + self.epsilon_high) * gain,
            torch.clamp(ratio, min=1 - self.epsilon_low) * gain,
        )
        drift = inputs["ref_per_token_logps"] - logp
        kl = (torch.expm1(drift) - drift) * ratio  # k3, weighted with the ratio (use_bias_correction_kl)
        token_loss = (self.beta * kl - surrogate) * mask

        # DAPO divides by the tokens of one accumulation window
        windows = self.args.steps_per_generation / self.current_gradient_accumulation_steps
        tokens = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes / windows
        with torch.no_grad():
            total = mask.sum()
            self._metrics["train"]["kl"].append(((kl * mask).sum() / total).item())
            self._metrics["train"]["entropy"].append(((entropy * mask).sum() / total).item())
        return token_loss.sum() / tokens


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=4,
        learning_rate=3e-4,
        beta=0.04,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_generations=4,
        max_completion_length=24,
        loss_type="dapo",
    )
    HandWrittenLoss(
        model=TINY,
        reward_funcs=digits,
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
    ).train()


if __name__ == "__main__":
    main()
