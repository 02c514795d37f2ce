import os
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def load():
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left", eos_token="<|endoftext|>")
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model.config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model, tokenizer


def answer_reward(completions, answer, **kwargs):
    out = []
    for completion, gold in zip(completions, answer):
        numbers = re.findall(r"#### (\d+)", completion[0]["content"])
        out.append(float(bool(numbers) and int(numbers[-1]) == gold))
    return out


def digits_reward(completions, **kwargs):
    return [-0.02 * sum(ch.isdigit() for ch in c[0]["content"]) for c in completions]


def main():
    model, tokenizer = load()
    rows = []
    for a in (2, 3, 4, 5):
        for b in (3, 5, 6, 7):
            rows.append({
                "prompt": [
                    {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                    {"role": "user", "content": f"Finn has {a} boxes with {b} stamps each. How many stamps does Finn have?"},
                ],
                "answer": a * b,
            })
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=6, learning_rate=1e-5, per_device_train_batch_size=8, num_generations=4,
        max_completion_length=32, scale_rewards="batch",
    )
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=[answer_reward, digits_reward],
        args=args, train_dataset=Dataset.from_list(rows),
    )
    trainer.train()


if __name__ == "__main__":
    main()
