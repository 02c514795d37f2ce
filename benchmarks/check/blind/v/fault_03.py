"""GRPO with a forward-time statistic kept on the model."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class StatsTrainer(GRPOTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        # The statistics live on the policy itself, not on its wrapper
        policy = self.accelerator.unwrap_model(model)
        loss = super().compute_loss(policy, inputs, return_outputs, num_items_in_batch)
        policy.seen_tokens = getattr(policy, "seen_tokens", 0) + int(inputs["completion_mask"].sum())
        if self.accelerator.sync_gradients:
            self._metrics["train"]["seen_tokens"].append(policy.seen_tokens)
        return loss


def has_number(completions, **kwargs):
    return [float(any(ch.isdigit() for ch in c[0]["content"])) for c in completions]


def length_penalty(completion_ids, **kwargs):
    return [-len(ids) / 20 for ids in completion_ids]


def main():
    torch.manual_seed(7)
    tokenizer = AutoTokenizer.from_pretrained(PATH)
    model = AutoModelForCausalLM.from_pretrained(PATH, dtype=torch.float32)
    rows = [{"prompt": [{"role": "user", "content": f"Name a number above {n}."}]} for n in range(32)]
    args = GRPOConfig(
        tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        logging_steps=1,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=14,
        learning_rate=1e-3,
        loss_type="grpo",
    )
    trainer = StatsTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[has_number, length_penalty],
        args=args,
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()


main()
