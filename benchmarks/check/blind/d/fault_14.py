"""Calculator agent with a covariance-regularised loss (Clip-Cov): the most surprising updates are left out."""
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny", "sft")


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: First number.
        b: Second number.
    """
    return int(a) + int(b)


class ClipCovTrainer(GRPOTrainer):
    clip_share = 0.0  # share of the tokens that is left out; 0 is plain GRPO (our baseline run)

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        mask = inputs["completion_mask"]
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids, attention, mask.size(1), compute_entropy=True
        )
        old = inputs.get("old_per_token_logps", logps.detach())
        advantages = inputs["advantages"].unsqueeze(1)
        ratio = torch.exp(logps - old)
        loss = -torch.min(
            ratio * advantages, torch.clamp(ratio, 1 - self.epsilon_low, 1 + self.epsilon_high) * advantages
        )
        if self.clip_share > 0:
            centred = (logps - logps[mask.bool()].mean()).detach() * advantages
            limit = torch.quantile(centred[mask.bool()], 1 - self.clip_share)
            mask = mask * (centred <= limit)
        self._metrics["train"]["entropy"].append((entropies * mask).sum().item() / max(mask.sum().item(), 1))
        loss = (loss * mask).sum() / mask.sum().clamp(min=1)
        return loss / self.current_gradient_accumulation_steps


def solved(completions, answer, **kwargs):
    rewards = []
    for messages, value in zip(completions, answer):
        last = messages[-1].get("content") or ""
        numbers = re.findall(r"\d+", last)
        used = any(m["role"] == "tool" for m in messages)
        rewards.append(float(bool(numbers) and numbers[-1] == str(value)) + 0.2 * used - 0.002 * len(last))
    return rewards


if __name__ == "__main__":
    rng = random.Random(0)
    pairs = [(rng.randint(2, 50), rng.randint(2, 49)) for _ in range(40)]
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"What is {a} + {b}?"}], "answer": a + b} for a, b in pairs]
    )
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    tokenizer.response_template = qwen3_template
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, num_generations=4, max_completion_length=120,
        max_tool_calling_iterations=1, max_steps=4, learning_rate=1e-5, loss_type="bnpo", bf16=False, use_cpu=True,
        logging_steps=1, report_to="none", save_strategy="no",
    )
    trainer = ClipCovTrainer(
        model=MODEL, processing_class=tokenizer, reward_funcs=solved, args=args, train_dataset=dataset, tools=[add],
    )
    trainer.train()
