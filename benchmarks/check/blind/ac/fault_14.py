"""GRPO with three passes over each batch and our own clipped surrogate, to log clip statistics by sign."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SurrogateTrainer(GRPOTrainer):
    def surrogate(self, ratio, advantages):
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        return torch.min(ratio, clipped) * advantages

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        mask = inputs["completion_mask"]
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids, attention, mask.size(1), compute_entropy=True
        )
        old = inputs.get("old_per_token_logps")
        ratio = torch.exp(logps - (logps.detach() if old is None else old))
        advantages = inputs["advantages"].unsqueeze(1)
        per_token = -self.surrogate(ratio, advantages)

        with torch.no_grad():
            outside = ((ratio < 1 - self.epsilon_low) | (ratio > 1 + self.epsilon_high)) * mask
            for name, rows in (("positive", advantages > 0), ("negative", advantages < 0)):
                share = (outside * rows).sum() / (mask * rows).sum().clamp(min=1)
                self._metrics["train"][f"outside/{name}"].append(share.item())
            self._metrics["train"]["entropy"].append(((entropies * mask).sum() / mask.sum()).item())

        per_row = (per_token * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return per_row.mean() / self.current_gradient_accumulation_steps


def letter_o(completions, **kwargs):
    return [c[0]["content"].count("o") / 4 + 0.01 * len(c[0]["content"]) for c in completions]


def main():
    questions = ["Add 4 and 5", "What is 2+3?", "Write a poem", "12 * 4 =", "hello", "Name 3 digits"]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=24,
        num_generations=6,
        num_iterations=3,
        max_completion_length=20,
        temperature=1.2,
        learning_rate=1e-3,
        loss_type="grpo",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = SurrogateTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=letter_o,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions * 2]),
    )
    trainer.train()


if __name__ == "__main__":
    main()
