"""A short format warm-up by SFT, then GRPO with a KL penalty that keeps the policy near the warm-up model."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
DEMOS = [
    ("What is 2+3?", "The sum is 5 coins."),
    ("What is 4+4?", "The sum is 8 coins."),
    ("12 * 4 =", "The product is 48 coins."),
    ("hello", "Hello, how many coins do you have?"),
]


def warm_up(model, tokenizer, steps=4, lr=5e-4):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model.train()
    for step in range(steps):
        total = 0.0
        for question, answer in DEMOS:
            chat = [{"role": "user", "content": question}]
            prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
            target = tokenizer(answer + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
            ids = torch.tensor([prompt + target])
            labels = torch.tensor([[-100] * len(prompt) + target])
            loss = model(input_ids=ids, labels=labels).loss / len(DEMOS)
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        print(f"warm-up {step}: {total:.3f}")
    return model


def coins(completions, **kwargs):
    return [c[0]["content"].count("o") / 5 + 0.01 * len(c[0]["content"]) for c in completions]


def main():
    torch.manual_seed(7)
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    policy = warm_up(AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32), tokenizer)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=20,
        beta=0.1,
        temperature=1.1,
        learning_rate=1e-4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=policy,
        processing_class=tokenizer,
        reward_funcs=coins,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q, _ in DEMOS * 4]),
    )
    trainer.train()


if __name__ == "__main__":
    main()
