"""LoRA+ (B matrices learn faster than A), sequence-level importance ratios, KL to the base model."""

import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LoraPlusTrainer(GRPOTrainer):
    ratio = 8.0

    def create_optimizer(self, *args, **kwargs):
        if self.optimizer is None:
            slow, fast = [], []
            for name, p in self.model.named_parameters():
                if p.requires_grad:
                    (fast if "lora_B" in name else slow).append(p)
            lr = self.args.learning_rate
            self.optimizer = torch.optim.AdamW(
                [{"params": slow, "lr": lr}, {"params": fast, "lr": lr * self.ratio}],
                lr=lr, betas=(self.args.adam_beta1, self.args.adam_beta2), eps=self.args.adam_epsilon,
                weight_decay=self.args.weight_decay,
            )
        return self.optimizer


def vowels(completions, **kwargs):
    return [sum(ch in "aeiou" for ch in c[0]["content"]) / (len(c[0]["content"]) + 1) for c in completions]


def length(completion_ids, **kwargs):
    return [-abs(len(ids) - 9) / 16 for ids in completion_ids]


def main():
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Sing about {w}."}] for w in
                    ["rain", "a slow train", "winter", "two brothers", "bread", "the sea"]]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=4,
        learning_rate=1e-4, per_device_train_batch_size=8, num_generations=4, num_iterations=2, beta=0.05,
        importance_sampling_level="sequence", loss_type="grpo", epsilon=3e-3, epsilon_high=4e-3,
        max_completion_length=20, temperature=1.2, gradient_checkpointing=False, logging_steps=1,
    )
    LoraPlusTrainer(
        model=MODEL, reward_funcs=[vowels, length], args=args, train_dataset=data,
        peft_config=LoraConfig(r=8, lora_alpha=16, use_rslora=True, target_modules="all-linear", task_type="CAUSAL_LM"),
    ).train()


if __name__ == "__main__":
    main()
