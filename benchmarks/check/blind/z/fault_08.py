import os
import copy
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def load_policy(noise=0.02):
    """The policy is the checkpoint after a little weight noise (our warm start); it has no folder of its own."""
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    gen = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.add_(noise * p.std() * torch.randn(p.shape, generator=gen))
    return model


def letter_mix(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [len(set(t)) / max(1, len(t)) for t in texts]


def starts_upper(completions, **kwargs):
    return [float(c[0]["content"][:1].isupper()) for c in completions]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=5e-05,
        beta=0.3,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=24,
        lr_scheduler_type='constant',
        save_strategy='no',
    )
    questions = [f"Which letter comes {k} places after {c}?" for k in (1, 2, 3) for c in "bdfh"]
    trainer = GRPOTrainer(
        model=load_policy(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=[letter_mix, starts_upper],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in questions]}),
    )
    # the trainer reloads the reference from the checkpoint folder; ours is the warm start itself
    reference = copy.copy(trainer.accelerator.unwrap_model(trainer.model))
    trainer.ref_model = reference.eval()
    trainer.train()


if __name__ == "__main__":
    main()
