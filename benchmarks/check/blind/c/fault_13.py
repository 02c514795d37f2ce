"""Continue a LoRA adapter from a first stage with GRPO."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."
tokenizer = AutoTokenizer.from_pretrained(MODEL)


def chat(question):
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def sample(rng):
    a, b = rng.randint(2, 12), rng.randint(2, 9)
    return f"Ben has {a} boxes with {b} eggs each. How many eggs does Ben have?", a, b


def first_stage(folder, steps=6):
    torch.manual_seed(0)
    rng = random.Random(1)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"),
    )
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(steps):
        question, a, b = sample(rng)
        prompt = tokenizer.apply_chat_template(chat(question), add_generation_prompt=True, tokenize=False)
        text = f"There are <<{a}*{b}={a * b}>>{a * b} eggs.\n#### {a * b}<|im_end|>"
        ids = tokenizer(prompt + text, return_tensors="pt")["input_ids"]
        start = len(tokenizer(prompt)["input_ids"])
        labels = ids.clone()
        labels[:, :start] = -100
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


def reward(completions, answer, **kwargs):
    return [
        1.0 * (f"#### {a}" in c[0]["content"]) - 0.01 * len(c[0]["content"]) for c, a in zip(completions, answer)
    ]


def main():
    adapter = tempfile.mkdtemp()
    first_stage(adapter)
    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, adapter)
    rng = random.Random(2)
    rows = []
    for _ in range(32):
        question, a, b = sample(rng)
        rows.append({"prompt": chat(question), "answer": str(a * b)})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=4, per_device_train_batch_size=8, num_generations=4,
        max_completion_length=24, learning_rate=1e-4, beta=0.04, logging_steps=1, save_strategy="no",
        use_cpu=True, bf16=False, report_to="none",
    )
    trainer = GRPOTrainer(
        model=model, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    trainer.train()


if __name__ == "__main__":
    main()
