"""Geometric-mean policy optimization (GMPO).

The ratios of the tokens are combined with a geometric mean, clipped token by token in log space, so that one token
with an extreme ratio cannot dominate its sequence.
"""

import os
import tempfile

import rlvr_debug
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

rlvr_debug.expect(loss="gmpo")


class GMPOTrainer(GRPOTrainer):
    log_clip = 0.4

    def _compute_loss(self, model, inputs):
        completion_ids, mask = inputs["completion_ids"], inputs["completion_mask"]
        input_ids = torch.cat([inputs["prompt_ids"], completion_ids], dim=1)
        attention_mask = torch.cat([inputs["prompt_mask"], mask], dim=1)
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, completion_ids.size(1), compute_entropy=True
        )
        old_logps = inputs.get("old_per_token_logps")
        old_logps = logps.detach() if old_logps is None else old_logps
        advantages = inputs["advantages"]

        sign = torch.sign(advantages).unsqueeze(1)
        signed = sign * (logps - old_logps)
        signed = torch.min(signed, signed.clamp(-self.log_clip, self.log_clip))
        lengths = mask.sum(dim=1).clamp(min=1.0)
        ratio = torch.exp((sign * signed * mask).sum(dim=1) / lengths)
        loss = -(advantages * ratio).mean()

        mode = "train" if self.model.training else "eval"
        self._metrics[mode]["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
        self._metrics[mode]["gmpo/ratio"].append(ratio.mean().item())
        normalizer = self.current_gradient_accumulation_steps if mode == "train" else 1.0
        return loss / normalizer


def header_reward(completions, **kwargs):
    """A Markdown header with a short title."""
    rewards = []
    for text in completions:
        reward = 0.5 * text.startswith("#") + 0.2 * (" " in text) - abs(len(text) - 14) / 28
        rewards.append(reward + 0.01 * len(set(text)))
    return rewards


def main():
    sections = ["install", "usage", "license", "contact", "changes", "tests", "build", "faq"]
    dataset = Dataset.from_dict({"prompt": [f"Title of the section on {section}:\n" for section in sections]})
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            num_iterations=2,
            num_generations=4,
            max_completion_length=16,
            max_steps=3,
            learning_rate=1e-5,
            loss_type="grpo",
            epsilon=0.4,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = GMPOTrainer(model=MODEL, reward_funcs=header_reward, args=args, train_dataset=dataset)
        trainer.train()


if __name__ == "__main__":
    main()
