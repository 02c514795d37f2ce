"""Geometric-mean policy optimization, two epochs per rollout, group normalisation over chat prompts with a prefilled
system role and several stop ids."""
import os
import tempfile

import rlvr_debug
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
rlvr_debug.expect(loss="gmpo")


def reward_short(completions, **kwargs):
    return [1.0 / (1.0 + len(c[0]["content"]) / 10) for c in completions]


def reward_digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / 12 for c in completions]


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    # a second way to end a turn
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("</cite>")]
    prompts = [
        [
            {"role": "system", "content": "Reply with a number."},
            {"role": "user", "content": f"Write a number between {a} and {a + b}."},
        ]
        for a in range(1, 12)
        for b in (5, 9, 20)
    ]
    trainer = GMPOTrainer(
        model=model,
        reward_funcs=[reward_short, reward_digits],
        args=GMPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=16,
            num_generations=8,
            num_iterations=2,
            max_completion_length=28,
            learning_rate=2e-4,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=1,
            max_steps=4,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
    )
    trainer.train()


if __name__ == "__main__":
    main()
