"""GRPO with extra metrics about the shape of the advantages."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def skewness(values):
    """Third standardised moment, without temporary copies."""
    values -= values.mean()
    values /= values.std().clamp(min=1e-6)
    return values.pow(3).mean().item()


class MeteredTrainer(GRPOTrainer):
    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        if self.model.training:
            with torch.no_grad():
                metrics = self._metrics["train"]
                metrics["advantages/max"].append(inputs["advantages"].max().item())
                metrics["advantages/skew"].append(skewness(inputs["advantages"].view(-1)))
                metrics["tokens/micro_batch"].append(inputs["completion_mask"].sum().item())
        return inputs


def digits_and_quotes(completions, **kwargs):
    return [0.5 * c[0]["content"].count('"') + 0.03 * len(c[0]["content"]) for c in completions]


dataset = Dataset.from_dict(
    {"prompt": [[{"role": "user", "content": f"{a} plus {b} is?"}] for a in range(2, 6) for b in range(3, 6)]}
)
config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=6,
    gradient_accumulation_steps=2,
    num_generations=4,
    max_completion_length=24,
    scale_rewards="none",
    temperature=1.2,
    learning_rate=1e-4,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to=[],
)
trainer = MeteredTrainer(model=MODEL, reward_funcs=digits_and_quotes, args=config, train_dataset=dataset)
trainer.train()
