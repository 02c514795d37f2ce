"""GSPO (sequence-level weights), written out to log more about the ratios."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class GSPOTrainer(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        completion_ids, mask = inputs["completion_ids"], inputs["completion_mask"]
        input_ids = torch.cat([inputs["prompt_ids"], completion_ids], dim=1)
        attention_mask = torch.cat([inputs["prompt_mask"], mask], dim=1)
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, completion_ids.size(1), compute_entropy=True
        )
        old_logps = inputs.get("old_per_token_logps")
        old_logps = logps.detach() if old_logps is None else old_logps

        log_ratio = (logps - old_logps) * mask
        weights = torch.exp(log_ratio.mean(dim=1))
        clipped = weights.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        advantages = inputs["advantages"]
        per_sequence = -torch.min(weights * advantages, clipped * advantages)
        loss = per_sequence.mean() / self.current_gradient_accumulation_steps

        metrics = self._metrics["train"]
        metrics["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
        metrics["weights/min"].append(weights.min().item())
        metrics["weights/max"].append(weights.max().item())
        metrics["weights/clipped"].append((weights != clipped).float().mean().item())
        return loss


things = ["eggs", "pens", "toys", "books"]
rows = []
for i in range(24):
    a, b, what = 3 + i % 16, 2 + i % 7, things[i % 4]
    question = f"Ben has {a} boxes with {b} {what} each. How many {what} does Ben have?"
    rows.append({"prompt": [{"role": "user", "content": question}], "what": what})


def variety(completions, what, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [0.5 * float(noun in text) + 0.05 * len(set(text)) for text, noun in zip(texts, what)]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=2e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    importance_sampling_level="sequence",
    loss_type="grpo",
    epsilon=0.1,
    epsilon_high=0.2,
    num_iterations=2,
    temperature=1.2,
)
trainer = GSPOTrainer(model=MODEL, reward_funcs=variety, args=args, train_dataset=Dataset.from_list(rows))
trainer.train()
