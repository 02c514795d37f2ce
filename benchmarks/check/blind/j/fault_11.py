"""GRPO with an explicitly given reference model (an SFT checkpoint that need not be the start point)."""
import functools
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

ROOT = os.path.dirname(os.path.abspath(__file__))
POLICY = os.path.join(ROOT, "tiny")
REFERENCE = os.path.join(ROOT, "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


@functools.lru_cache(maxsize=4)
def load_model(path, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype)


class ExplicitReferenceTrainer(GRPOTrainer):
    def __init__(self, *args, ref_model=None, **kwargs):
        super().__init__(*args, **kwargs)
        if ref_model is not None:
            if "forward" not in vars(ref_model):  # not patched yet
                add_fused_lm_head(ref_model, temperature=self.temperature)
            self.ref_model = self.accelerator.prepare_model(ref_model, evaluation_mode=True)


def noun_reward(completions, noun, **kwargs):
    return [0.5 * (n in c[0]["content"]) for c, n in zip(completions, noun)]


def result_reward(completions, result, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [float(str(r) in t) + 0.03 * sum(ch.isdigit() for ch in t) for t, r in zip(texts, result)]


def data(n=56):
    rng = random.Random(17)
    records = []
    for _ in range(n):
        a, b = rng.randint(2, 30), rng.randint(2, 9)
        noun = rng.choice(["apples", "books", "cards", "eggs", "pens", "shells"])
        records.append(
            {
                "prompt": [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"Ben has {a} boxes with {b} {noun} each. How many {noun} does Ben have?"},
                ],
                "noun": noun,
                "result": a * b,
            }
        )
    return Dataset.from_list(records)


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="ref_"),
        use_cpu=True,
        bf16=False,
        report_to=[],
        beta=0.1,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=44,
        learning_rate=3e-4,
        max_steps=5,
        logging_steps=1,
        save_strategy="no",
        gradient_checkpointing=False,
    )
    trainer = ExplicitReferenceTrainer(
        model=load_model(POLICY),
        ref_model=load_model(REFERENCE),
        processing_class=AutoTokenizer.from_pretrained(POLICY),
        reward_funcs=[noun_reward, result_reward],
        args=args,
        train_dataset=data(),
    )
    trainer.train()
    print("kl:", [h["kl"] for h in trainer.state.log_history if "kl" in h])


if __name__ == "__main__":
    main()
