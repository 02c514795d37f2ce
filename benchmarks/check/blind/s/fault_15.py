"""GRPO with its loss written out.

The trainer's loss has branches for a dozen variants. This subclass has the one we use (token-level loss over the
whole batch, `loss_type="dapo"`), in twenty lines, so that we can log what happens to the tokens.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ReadableLossTrainer(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        completion_ids, mask = inputs["completion_ids"], inputs["completion_mask"]
        input_ids = torch.cat([inputs["prompt_ids"], completion_ids], dim=1)
        attention_mask = torch.cat([inputs["prompt_mask"], mask], dim=1)
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, completion_ids.size(1), compute_entropy=True
        )

        old_logps = inputs.get("old_per_token_logps")
        old_logps = logps.detach() if old_logps is None else old_logps
        ratio = torch.exp(logps - old_logps)
        advantages = inputs["advantages"].unsqueeze(1)
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        token_loss = -torch.min(ratio * advantages, clipped * advantages)

        # token-level: every token has the same weight, however long its completion is
        loss = (token_loss * mask).sum() / mask.sum().clamp(min=1.0)
        loss = loss / self.current_gradient_accumulation_steps

        mode = "train" if self.model.training else "eval"
        entropy = (entropies * mask).sum() / mask.sum()
        self._metrics[mode]["entropy"].append(entropy.item())
        self._metrics[mode]["tokens_per_micro_batch"].append(mask.sum().item())
        self._metrics[mode]["ratio"].append(((ratio * mask).sum() / mask.sum()).item())
        return loss


def wordy(completions, **kwargs):
    """Longer is better here, and repeated characters are not."""
    return [len(c[0]["content"]) / 40 + len(set(c[0]["content"])) / 20 for c in completions]


def main():
    subjects = ["the sea", "a bridge", "an engine", "a storm", "the moon", "a market", "a forest", "a castle"]
    dataset = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Describe {subject}."}] for subject in subjects]}
    )
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=4,
            num_generations=4,
            max_completion_length=32,
            max_steps=3,
            learning_rate=1e-4,
            loss_type="dapo",
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = ReadableLossTrainer(model=MODEL, reward_funcs=wordy, args=args, train_dataset=dataset)
        trainer.train()


if __name__ == "__main__":
    main()
