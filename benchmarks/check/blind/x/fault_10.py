"""GRPO with KL for a checkpoint whose control tokens are re-initialised in memory before the run."""

import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
CONTROL = ["<think>", "</think>", "<answer>", "</answer>\n<cite>"]


def load_policy():
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        mean, std = table[:256].mean(0), table[:256].std(0)
        generator = torch.Generator().manual_seed(11)
        for token in CONTROL:
            noise = torch.randn(table.shape[1], generator=generator)
            table[tokenizer.convert_tokens_to_ids(token)] = mean + 0.1 * std * noise
    return model, tokenizer


def use_policy_as_reference(trainer):
    """TRL reloads the reference from the path, which lacks the re-initialised rows."""
    policy = trainer.accelerator.unwrap_model(trainer.model)
    trainer.ref_model.load_state_dict(policy.state_dict(), assign=True)
    trainer.ref_model.requires_grad_(False)
    trainer.ref_model.eval()


def letters(completions, **kwargs):
    return [sum(ch.isalpha() for ch in c[0]["content"]) / (len(c[0]["content"]) + 1) for c in completions]


def length_target(completion_ids, **kwargs):
    return [-abs(len(ids) - 10) / 10 for ids in completion_ids]


def main():
    model, tokenizer = load_policy()
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"{verb} the {noun}."}] for verb in ("Describe", "Rate", "Price")
                    for noun in ("lamp", "ship", "orchard")]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=3,
        learning_rate=2e-3, lr_scheduler_type="constant", beta=0.2, per_device_train_batch_size=8, num_generations=4,
        max_completion_length=20, temperature=1.2, gradient_checkpointing=False, logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=model, reward_funcs=[letters, length_target], args=args, train_dataset=data, processing_class=tokenizer
    )
    use_policy_as_reference(trainer)
    trainer.train()


if __name__ == "__main__":
    main()
