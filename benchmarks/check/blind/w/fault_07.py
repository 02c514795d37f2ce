"""GRPO with a KL term. The policy starts from weights edited in memory, so the reference must start there too."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
CITIES = ["Lima", "Oslo", "Cairo", "Quito", "Delhi", "Porto", "Kyoto", "Accra", "Turin", "Hanoi", "Perth", "Sofia"]


def make_dataset():
    rows = []
    for city in CITIES:
        for what in ("weather", "food", "history"):
            rows.append({"prompt": [{"role": "user", "content": f"Say something about the {what} of {city}."}]})
    return Dataset.from_list(rows)


def letters(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch.isalpha() for ch in t) / 20 for t in texts]


def no_runs(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [-sum(x == y for x, y in zip(t, t[1:])) / 10 for t in texts]


@torch.no_grad()
def dampen_end_of_turn(model, tokenizer, factor=0.9):
    """The checkpoint ends its turns too eagerly: scale the end-of-turn row of the head."""
    model.lm_head.weight[tokenizer.eos_token_id].mul_(factor)


def main():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    policy = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    dampen_end_of_turn(policy, tokenizer)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=4,
        learning_rate=1e-3,
        beta=0.05,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        loss_type="grpo",
    )
    trainer = GRPOTrainer(
        model=policy,
        reward_funcs=[letters, no_runs],
        args=args,
        train_dataset=make_dataset(),
        processing_class=tokenizer,
    )
    # The trainer built its reference from the files on disk: give it the edited weights
    trainer.ref_model.load_state_dict(trainer.model.state_dict(), assign=True)
    trainer.ref_model.eval().requires_grad_(False)
    trainer.train()


if __name__ == "__main__":
    main()
