"""GRPO with a LoRA adapter built before the trainer, with a KL term to the base model."""
import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import GRPOConfig, GRPOTrainer

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def build_model():
    # Every worker has a random state of its own from here on; DDP sends rank 0's adapter to all when it wraps the model
    set_seed(100 + int(os.environ.get("RANK", 0)))
    model = AutoModelForCausalLM.from_pretrained(PATH, dtype=torch.float32)
    config = LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "k_proj", "v_proj"], task_type="CAUSAL_LM"
    )
    return get_peft_model(model, config)


def reward(completions, completion_ids, **kwargs):
    return [
        0.25 * sum(ch.isdigit() for ch in c[0]["content"]) + 0.05 * len(set(c[0]["content"])) - 0.02 * len(ids)
        for c, ids in zip(completions, completion_ids)
    ]


def main():
    rows = [{"prompt": [{"role": "user", "content": f"What comes after {n}?"}]} for n in range(40)]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=16,
        beta=0.05,
        learning_rate=5e-3,
    )
    trainer = GRPOTrainer(
        model=build_model(),
        processing_class=AutoTokenizer.from_pretrained(PATH),
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()


if __name__ == "__main__":
    main()
