"""GRPO with the loss written out in the trainer, so that clip statistics per sequence can be kept for analysis."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def make_dataset(n=48):
    rng = random.Random(17)
    rows = []
    for _ in range(n):
        boxes, pens = rng.randint(2, 9), rng.randint(2, 12)
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"There are {boxes} boxes with {pens} pens each. How many pens?"},
                ],
                "answer": boxes * pens,
            }
        )
    return Dataset.from_list(rows)


def correct(completions, answer, **kwargs):
    return [float(str(a) in c[0]["content"]) for c, a in zip(completions, answer)]


def form(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [0.5 * ("####" in t) + 0.02 * sum(ch.isdigit() for ch in t) - 0.005 * len(t) for t in texts]


class ExplicitLossTrainer(GRPOTrainer):
    """`loss_type="grpo"`: mean over the tokens of a sequence, then over the sequences."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.clipped_share = []

    def _compute_loss(self, model, inputs):
        mask = inputs["completion_mask"]
        input_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention_mask = torch.cat([inputs["prompt_mask"], mask], dim=1)
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, mask.size(1), compute_entropy=True
        )
        old_logps = inputs.get("old_per_token_logps")
        old_logps = logps.detach() if old_logps is None else old_logps
        advantages = inputs["advantages"].unsqueeze(1)

        ratio = torch.exp(logps - old_logps)
        clipped = torch.clamp(ratio, 1 - self.epsilon_low, 1 + self.epsilon_high)
        per_token_loss = -torch.min(ratio * advantages, clipped * advantages)

        per_sequence = (per_token_loss * mask).mean(dim=1)
        loss = per_sequence.mean()

        with torch.no_grad():
            outside = ((ratio < 1 - self.epsilon_low) | (ratio > 1 + self.epsilon_high)) & mask.bool()
            self.clipped_share.append((outside.sum(1) / mask.sum(1).clamp(min=1)).tolist())
            self._metrics["train"]["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
        return loss / self.current_gradient_accumulation_steps


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
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        num_iterations=2,
        max_completion_length=32,
        loss_type="grpo",
        epsilon=0.2,
    )
    trainer = ExplicitLossTrainer(
        model=TINY,
        reward_funcs=[correct, form],
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
    )
    trainer.train()


if __name__ == "__main__":
    main()
