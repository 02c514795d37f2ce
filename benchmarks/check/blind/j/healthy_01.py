"""The DAPO objective with a KL term written out in our own trainer, so that its parts can be logged."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class SpelledOutTrainer(GRPOTrainer):
    def policy_term(self, logps, old_logps, advantages):
        ratio = (logps - old_logps).exp()
        low, high = 1.0 - self.epsilon_low, 1.0 + self.epsilon_high
        unclipped = ratio * advantages
        clipped = ratio.clamp(low, high) * advantages
        return ratio, -torch.where(unclipped < clipped, unclipped, clipped)

    def kl_term(self, logps, ref_logps, ratio):
        gap = ref_logps - logps
        return (torch.expm1(gap) - gap) * ratio  # k3, corrected for the sampler as use_bias_correction_kl asks

    def _compute_loss(self, model, inputs):
        mask = inputs["completion_mask"]
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attention = torch.cat([inputs["prompt_mask"], mask], 1)
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids, attention, mask.size(1), compute_entropy=True
        )
        old = inputs.get("old_per_token_logps", logps.detach())
        ratio, loss = self.policy_term(logps, old, inputs["advantages"][:, None])
        kl = self.kl_term(logps, inputs["ref_per_token_logps"], ratio)
        loss = loss + self.beta * kl
        denominator = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
        denominator = denominator * self.current_gradient_accumulation_steps / self.args.steps_per_generation
        tokens = mask.sum().clamp(min=1)
        for name, value in {"entropy": entropies, "kl": kl, "ratio": ratio}.items():
            self._metrics["train"][name].append(((value * mask).sum() / tokens).item())
        return (loss * mask).sum() / denominator


def dataset(n=64):
    rng = random.Random(1)
    rows = []
    for _ in range(n):
        a, b, c = rng.randint(2, 15), rng.randint(2, 6), rng.randint(2, 5)
        q = f"Ada has {a} boxes with {b} eggs each. Each costs {c} coins. How many coins do they cost together?"
        rows.append(
            {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": q}], "gold": str(a * b * c)}
        )
    return Dataset.from_list(rows)


def gold_reward(completions, gold, **kwargs):
    return [float(c[0]["content"].endswith(g)) for c, g in zip(completions, gold)]


def digits_reward(completions, **kwargs):
    return [0.05 * sum(ch.isdigit() for ch in c[0]["content"]) for c in completions]


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        beta=0.02,
        epsilon=0.2,
        epsilon_high=0.28,
        loss_type="dapo",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        num_iterations=2,
        max_completion_length=64,
        learning_rate=1e-4,
        max_steps=5,
        logging_steps=1,
        save_strategy="no",
    )
    SpelledOutTrainer(
        model=MODEL, args=args, reward_funcs=[gold_reward, digits_reward], train_dataset=dataset()
    ).train()
