"""A short supervised warm-up, then GRPO that is held near the warmed-up model."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tokenizer = AutoTokenizer.from_pretrained(MODEL)


def problems(n, seed):
    rng = random.Random(seed)
    for _ in range(n):
        a, b = rng.randint(2, 20), rng.randint(2, 20)
        yield f"Question: what is {a} + {b}?\nThe answer is ", str(a + b)


def warm_up(model, epochs=3):
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0)
    data = list(problems(24, seed=100))
    for _ in range(epochs):
        for start in range(0, len(data), 8):
            loss = 0.0
            for prompt, answer in data[start : start + 8]:
                p = tokenizer(prompt)["input_ids"]
                a = tokenizer(answer)["input_ids"] + [tokenizer.eos_token_id]
                ids = torch.tensor([p + a])
                labels = torch.tensor([[-100] * len(p) + a])
                loss = loss + model(input_ids=ids, labels=labels).loss / 8
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    print(f"warm-up loss {loss.item():.3f}")
    return model


def digits(completions, answer, **kwargs):
    rewards = []
    for text, truth in zip(completions, answer):
        text = text.strip()
        rewards.append(1.0 if text == truth else 0.3 * (text[:1] == truth[:1]) + 0.1 * (len(text) == len(truth)))
    return rewards


def main():
    model = warm_up(AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32))
    dataset = Dataset.from_list([{"prompt": p, "answer": a} for p, a in problems(48, seed=7)])
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=8,
        learning_rate=1e-5,
        beta=0.2,
        loss_type="grpo",
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    trainer = GRPOTrainer(
        model=model, reward_funcs=digits, args=args, train_dataset=dataset, processing_class=tokenizer
    )
    trainer.train()


if __name__ == "__main__":
    main()
