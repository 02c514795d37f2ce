"""LoRA, KL to the base model, GSPO-like ratios, two passes, and micro-batches sorted by length."""
import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SortedTrainer(GRPOTrainer):
    """Puts long rows first; everything that has a row per completion moves along."""

    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        order = torch.argsort(inputs["completion_mask"].sum(dim=1), descending=True, stable=True)
        return {
            key: value[order] if isinstance(value, torch.Tensor) and value.dim() > 0 else value
            for key, value in inputs.items()
        }


def numbers(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / 4 for c in completions]


def size(completion_ids, **kwargs):
    return [-0.02 * len(ids) for ids in completion_ids]


trainer = SortedTrainer(
    model=os.path.join(TINY, "sft"),
    reward_funcs=[numbers, size],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_generations=4,
        num_iterations=2,
        max_completion_length=20,
        beta=0.02,
        use_bias_correction_kl=True,
        importance_sampling_level="sequence",
        loss_type="grpo",
        epsilon=3e-2,
        epsilon_high=4e-2,
        delta=1.5,
        learning_rate=2e-4,
        logging_steps=1,
    ),
    train_dataset=Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"What is {k} * {k + 1}?"}]} for k in range(2, 22)]
    ),
    peft_config=LoraConfig(
        r=4, lora_alpha=8, use_rslora=True, target_modules=["q_proj", "k_proj", "o_proj"], lora_dropout=0.0
    ),
)
trainer.train()
