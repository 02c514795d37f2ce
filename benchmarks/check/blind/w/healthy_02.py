"""LoRA+ : the B matrices of the adapter learn faster than the A matrices. KL against the base model."""
import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset():
    gifts = ["scarf", "watch", "plant", "novel", "puzzle", "mug"]
    who = ["my aunt", "a friend", "the boss", "a child"]
    return Dataset.from_list([{"prompt": [{"role": "user", "content": f"Write a card for {w} with a {g}."}]} for w in who for g in gifts])


def letters(completions, **kwargs):
    return [0.05 * sum(ch.isalpha() for ch in c[0]["content"]) for c in completions]


def few_repeats(completion_ids, **kwargs):
    return [len(set(ids)) / len(ids) for ids in completion_ids]


class LoraPlusTrainer(GRPOTrainer):
    ratio = 8.0

    def create_optimizer(self, *args, **kwargs):
        if self.optimizer is None:
            slow = [p for n, p in self.model.named_parameters() if p.requires_grad and "lora_B" not in n]
            fast = [p for n, p in self.model.named_parameters() if p.requires_grad and "lora_B" in n]
            lr = self.args.learning_rate
            self.optimizer = torch.optim.AdamW(
                [{"params": slow, "lr": lr}, {"params": fast, "lr": lr * self.ratio}],
                betas=(self.args.adam_beta1, self.args.adam_beta2),
                eps=self.args.adam_epsilon,
                weight_decay=0.0,
            )
        return self.optimizer


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=5e-4,
        lr_scheduler_type="cosine",
        beta=0.02,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
    )
    trainer = LoraPlusTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        reward_funcs=[letters, few_repeats],
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        peft_config=LoraConfig(r=4, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.train()


if __name__ == "__main__":
    main()
