"""DoRA with rank-stabilised scaling, LoRA+ learning rates, KL to the base model, adapter checkpoints after every step."""
import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LoraPlusTrainer(GRPOTrainer):
    """B matrices and magnitudes learn faster than the A matrices."""

    lora_plus_ratio = 4.0

    def create_optimizer(self, model=None):
        if self.optimizer is None:
            model = self.model if model is None else model
            slow, fast = [], []
            for name, p in model.named_parameters():
                if p.requires_grad:
                    (fast if "lora_B" in name or "magnitude" in name else slow).append(p)
            lr = self.args.learning_rate
            self.optimizer = torch.optim.AdamW(
                [{"params": slow, "lr": lr}, {"params": fast, "lr": lr * self.lora_plus_ratio}],
                betas=(0.9, 0.99),
                weight_decay=0.01,
            )
        return self.optimizer


def reward(completions, completion_ids, **kwargs):
    return [0.2 * len(set(t)) - 0.03 * len(ids) for t, ids in zip(completions, completion_ids)]


def main():
    trainer = LoraPlusTrainer(
        model=MODEL,
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=20,
            beta=0.02,
            loss_type="dapo",
            learning_rate=5e-4,
            lr_scheduler_type="polynomial",
            max_grad_norm=0.2,
            max_steps=4,
            logging_steps=1,
            save_strategy="steps",
            save_steps=1,
            save_total_limit=2,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": False},
        ),
        train_dataset=Dataset.from_dict({"prompt": [f"Q: {a}-{b}? A:" for a in range(10, 20) for b in range(2, 8)]}),
        processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
        peft_config=LoraConfig(
            r=4,
            lora_alpha=8,
            use_dora=True,
            use_rslora=True,
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "down_proj"],
            layers_to_transform=[0, 1],
            task_type="CAUSAL_LM",
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()
