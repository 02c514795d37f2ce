"""Token-level GRPO loss in the style of our old code base, on micro-batches without shared padding."""
import os
import random
import tempfile

import torch
import torch.nn.functional as F
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class RaggedTrainer(GRPOTrainer):
    def _prepare_inputs(self, generation_batch):
        batch = dict(super()._prepare_inputs(generation_batch))
        width = int(batch["completion_mask"].sum(1).max())
        start = int(batch["prompt_mask"].argmax(1).min())
        for key, value in batch.items():
            if key.startswith("prompt_"):
                batch[key] = value[:, start:]
            elif key in ("completion_ids", "completion_mask", "old_per_token_logps", "ref_per_token_logps"):
                batch[key] = value[:, :width]
        return batch

    def _compute_loss(self, model, inputs):
        mask = inputs["completion_mask"].bool()
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model,
            torch.cat((inputs["prompt_ids"], inputs["completion_ids"]), 1),
            torch.cat((inputs["prompt_mask"], inputs["completion_mask"]), 1),
            mask.size(1),
            compute_entropy=True,
        )
        # flat list of the tokens that count
        lp = logps[mask]
        old = inputs["old_per_token_logps"][mask] if "old_per_token_logps" in inputs else lp.detach()
        ref = inputs["ref_per_token_logps"][mask]
        adv = inputs["advantages"].repeat_interleave(mask.sum(1))

        ratio = (lp - old).exp()
        bound = torch.where(adv >= 0, 1 + self.epsilon_high, 1 - self.epsilon_low)
        surrogate = torch.where(adv >= 0, ratio.minimum(bound), ratio.maximum(bound)) * adv
        kl = torch.expm1(ref - lp) - (ref - lp)
        if self.args.use_bias_correction_kl:
            kl = kl * ratio

        windows = self.args.steps_per_generation / self.current_gradient_accumulation_steps
        tokens_per_window = inputs["num_items_in_batch"].clamp(min=1) / windows
        loss = (self.beta * kl - surrogate).sum() / tokens_per_window

        log = self._metrics["train" if self.model.training else "eval"]
        log["kl"].append(kl.mean().item())
        log["entropy"].append(entropies[mask].mean().item())
        log["clipped"].append((surrogate != ratio * adv).float().mean().item())
        return loss


def reward(completions, completion_ids, **kwargs):
    return [c[0]["content"].count("4") + 0.1 * len(i) for c, i in zip(completions, completion_ids)]


if __name__ == "__main__":
    rng = random.Random(3)
    rows = []
    for _ in range(48):
        who = rng.choice(["Ada", "Cleo", "Hana"])
        text = f"{who} has {rng.randint(2, 9)} boxes with {rng.randint(10, 99)} eggs each."
        text += rng.choice([f" How many eggs does {who} have?", " Each costs 3 coins. How many coins do they cost together?"])
        if rng.random() < 0.5:
            text = "Solve the problem step by step. End with #### and the number. " + text
        rows.append({"prompt": [{"role": "user", "content": text}]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4,
        num_iterations=2, max_completion_length=24, loss_type="dapo", epsilon=0.1, epsilon_high=0.15, beta=0.03,
        max_steps=4, learning_rate=2e-4, lr_scheduler_type="constant", use_cpu=True, bf16=False, report_to=[],
        logging_steps=1, save_strategy="no",
    )
    RaggedTrainer(model=MODEL, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(rows)).train()
