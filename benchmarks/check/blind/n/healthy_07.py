"""GSPO with two iterations, and a reference model that follows the policy after every step."""
import os
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def graded(completions, answer, **kwargs):
    scores = []
    for completion, value in zip(completions, answer):
        text = completion[0]["content"]
        numbers = [int(n[:7]) for n in re.findall(r"\d+", text)]
        best = min((abs(n - value) / value for n in numbers), default=1.0)
        scores.append(max(0.0, 1.0 - best) + 0.01 * len(text))
    return scores


def dataset():
    rows = []
    for i, (who, what) in enumerate(
        zip(["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"], ["shells", "stamps", "cards", "books"] * 2)
    ):
        a, b = 11 + i, 19 - i
        text = f"{who} has {a} boxes with {b} {what} each. Each costs 5 coins. How many coins do they cost together?"
        rows.append(
            {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}], "answer": 5 * a * b}
        )
    return Dataset.from_list(rows)


def freeze_for_stability(model):
    """Embeddings and the first norm stay as they are."""
    model.get_input_embeddings().requires_grad_(False)
    model.model.layers[0].input_layernorm.requires_grad_(False)
    return model


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = freeze_for_stability(AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32))
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        num_iterations=2,
        importance_sampling_level="sequence",
        loss_type="grpo",
        epsilon=3e-3,
        epsilon_high=4e-3,
        beta=0.02,
        sync_ref_model=True,
        ref_model_sync_steps=1,
        ref_model_mixup_alpha=0.3,
        max_completion_length=32,
        learning_rate=1e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=graded,
        args=args,
        train_dataset=dataset(),
        processing_class=tokenizer,
    )
    trainer.train()


if __name__ == "__main__":
    main()
