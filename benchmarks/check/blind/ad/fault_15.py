"""GRPO on forking tokens (arXiv 2506.01939): policy gradients on the 30% of tokens with the highest entropy."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def rows():
    for i in range(24):
        thing = ["books", "eggs", "toys"][i % 3]
        q = f"Finn has {2 + i % 5} boxes with {3 + i % 6} {thing} each."
        q += f" How many {thing} does Finn have?" if i % 2 else " Each costs 7 coins. How many coins do they cost together?"
        yield {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": q},
            ]
        }


def reward(completions, **kwargs):
    return [len(set(c[0]["content"])) / 25 + ("####" in c[0]["content"]) for c in completions]


class ForkingTokens(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        mask = inputs["completion_mask"]
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], mask], dim=1)
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids, attention, mask.size(1), compute_entropy=True
        )
        old = inputs.get("old_per_token_logps")
        ratio = torch.exp(logps - (logps.detach() if old is None else old))
        advantages = inputs["advantages"].unsqueeze(1)
        surrogate = torch.min(
            ratio * advantages, ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high) * advantages
        )

        entropies = entropies.float() * mask
        threshold = torch.quantile(entropies.flatten(), 1 - self.top_entropy_quantile)
        forking = (entropies >= threshold) & mask.bool()

        normalizer = inputs["num_items_in_batch"].clamp(min=1.0)
        normalizer = normalizer * self.current_gradient_accumulation_steps / self.args.steps_per_generation
        loss = -(surrogate * forking).sum() / normalizer

        metrics = self._metrics["train" if self.model.training else "eval"]
        metrics["entropy"].append((entropies.sum() / mask.sum()).item())
        metrics["forking/threshold"].append(threshold.item())
        return loss


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        loss_type="dapo",
        temperature=1.2,
        top_entropy_quantile=0.3,
        epsilon_high=0.28,
        num_iterations=2,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
        learning_rate=2e-4,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    ForkingTokens(
        model=MODEL, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(list(rows()))
    ).train()
