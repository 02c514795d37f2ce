"""KL-regularised GRPO against a reference that several runs of a sweep share (loaded once, frozen)."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny")


def load_reference():
    reference = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    reference.requires_grad_(False)
    reference.eval()
    add_fused_lm_head(reference)  # the trainer asks for log-probabilities instead of logits
    return reference


def varied(completions, **kwargs):
    return [len(set(text)) / max(len(text), 1) + 0.1 * (text.count("2") > 0) for text in completions]


def run(beta, reference):
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        beta=beta,
        temperature=0.8,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=24,
        learning_rate=2e-4,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=varied,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [f"{w} {i}:" for w in ("def add", "The cat", "List", "Sum") for i in range(10)]}),
        processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
    )
    trainer.ref_model = reference
    trainer.train()


if __name__ == "__main__":
    shared = load_reference()
    for beta in [0.05]:
        run(beta, shared)
