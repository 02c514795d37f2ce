"""Warm start, then GRPO with a KL term.

A few supervised steps teach the format (`#### number`). GRPO starts from there; the KL term (beta 0.1) keeps the policy
close to the warm-started model, so that the format isn't lost again.
"""

import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def question(i):
    return f"There are {i + 2} boxes with {i % 4 + 2} pens each. How many pens?", (i + 2) * (i % 4 + 2)


def warm_start(model, tokenizer, steps=6, lr=1e-3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    model.train()
    losses = []
    for step in range(steps):
        texts = []
        for k in range(4):
            q, a = question(100 + 4 * step + k)
            texts.append(
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": q}, {"role": "assistant", "content": f"#### {a}"}], tokenize=False
                )
            )
        batch = tokenizer(texts, return_tensors="pt", padding=True)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        loss = model(**batch, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


def format_reward(completions, **kwargs):
    return [float(c[0]["content"].startswith("#### ")) for c in completions]


def value_reward(completions, answer, **kwargs):
    return [float(str(a) in c[0]["content"]) - 0.01 * len(c[0]["content"]) for c, a in zip(completions, answer)]


def main():
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(TINY, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    print("warm start:", [round(x, 3) for x in warm_start(model, tokenizer)])
    rows = []
    for i in range(32):
        q, a = question(i)
        rows.append({"prompt": [{"role": "user", "content": q}], "answer": a})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=16, learning_rate=5e-5, beta=0.1,
        logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=model, reward_funcs=[format_reward, value_reward], args=args, train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    trainer.train()


if __name__ == "__main__":
    main()
