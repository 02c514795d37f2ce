"""Stage 1: a short SFT with LoRA, saved as an adapter. Stage 2: GRPO goes on from this adapter."""
import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

BASE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
WORK = tempfile.mkdtemp()


def load_base():
    return AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)


def sft(tokenizer, texts, folder):
    model = get_peft_model(load_base(), LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM"))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for text in texts:
        batch = tokenizer(text, return_tensors="pt")
        loss = model(**batch, labels=batch["input_ids"]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


def reward_numbers(completions, **kwargs):
    return [sum(c.isdigit() for c in text) / (len(text) + 1) for text in completions]


def main():
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    adapter = os.path.join(WORK, "sft")
    sft(tokenizer, [f"{a} * {b} = {a * b}" for a in range(2, 6) for b in range(2, 5)], adapter)

    model = PeftModel.from_pretrained(load_base(), adapter)
    data = Dataset.from_dict({"prompt": [f"{a} * {b} =" for a in range(2, 9) for b in range(2, 9)]})
    args = GRPOConfig(
        output_dir=os.path.join(WORK, "grpo"),
        learning_rate=1e-4,
        max_steps=5,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=20,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = GRPOTrainer(model=model, reward_funcs=reward_numbers, args=args, train_dataset=data, processing_class=tokenizer)
    trainer.train()


if __name__ == "__main__":
    main()
