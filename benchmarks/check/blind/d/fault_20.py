"""Short supervised warm-up on the answer format, then GRPO that stays close to the warmed-up model (beta)."""
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny")


def ask(a, b):
    return [{"role": "user", "content": f"What is {a} + {b}?"}]


def warm_up(model, tokenizer, steps=15):
    """Teaches the form `12</think>34`, so that the format reward is not zero everywhere."""
    rng = random.Random(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    model.train()
    for _ in range(steps):
        loss = 0.0
        for _ in range(4):
            a, b = rng.randint(2, 40), rng.randint(2, 40)
            prompt = tokenizer.apply_chat_template(ask(a, b), add_generation_prompt=True, return_dict=False)
            target = tokenizer(f"<think>{a}+{b}</think>{a + b}<|im_end|>")["input_ids"]
            ids = torch.tensor([prompt + target])
            labels = torch.tensor([[-100] * len(prompt) + target])
            loss = loss + model(input_ids=ids, labels=labels).loss / 4
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.zero_grad(set_to_none=True)
    return model


def reward(completions, answer, **kwargs):
    out = []
    for completion, value in zip(completions, answer):
        text = completion[0]["content"]
        last = re.findall(r"\d+", text)[-1:]
        out.append(float(last == [str(value)]) + 0.3 * ("</think>" in text) - 0.005 * len(text))
    return out


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model = warm_up(model, tokenizer)
    rng = random.Random(2)
    rows = [(rng.randint(2, 40), rng.randint(2, 40)) for _ in range(48)]
    dataset = Dataset.from_list([{"prompt": ask(a, b), "answer": a + b} for a, b in rows])
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=2e-5,
        beta=0.1,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=reward, args=args, train_dataset=dataset
    )
    trainer.train()


if __name__ == "__main__":
    main()
