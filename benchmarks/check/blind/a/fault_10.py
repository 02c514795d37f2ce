"""KL against the SFT checkpoint instead of the starting weights (here both are the same folder)."""
import argparse
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

TINY = Path(__file__).parent / "tiny"


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--policy", default=str(TINY))
    ap.add_argument("--sft", default=str(TINY))
    ap.add_argument("--beta", type=float, default=0.05)
    ap.add_argument("--temperature", type=float, default=0.8)
    return ap.parse_args()


def prompts():
    for i in range(30):
        a, b = 12 + i % 11, 13 + (4 * i) % 19
        yield dict(
            prompt=[
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Ben has {a} boxes with {b} cards each. How many cards does Ben have?"},
            ],
            expected=a * b,
        )


def score(completions, expected, **kwargs):
    s = []
    for c, e in zip(completions, expected):
        t = c[0]["content"]
        s.append(float(str(e) in t) + 0.4 * float("cards" in t) + 0.2 * float(t.endswith(str(e)[-1])))
    return s


def main():
    o = parse()
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to="none", bf16=False, max_steps=3, learning_rate=1e-4,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=24, beta=o.beta,
        temperature=o.temperature, save_strategy="no", logging_steps=1,
    )
    trainer = GRPOTrainer(o.policy, score, args, Dataset.from_list(list(prompts())))

    sft = AutoModelForCausalLM.from_pretrained(o.sft, dtype=torch.float32)
    sft.requires_grad_(False)
    add_fused_lm_head(sft)
    trainer.ref_model = trainer.accelerator.prepare_model(sft, evaluation_mode=True)

    trainer.train()


if __name__ == "__main__":
    main()
