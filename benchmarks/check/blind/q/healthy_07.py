"""Continue an SFT adapter with GRPO, LoRA+ learning rates, and a KL term towards the adapter's start."""
import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, get_cosine_schedule_with_warmup
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def fresh_base():
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)


def make_adapter(folder):
    """Stands for an earlier SFT run: an adapter whose B matrices are not zero."""
    torch.manual_seed(4)
    config = LoraConfig(r=4, lora_alpha=8, use_rslora=True, target_modules=["q_proj", "o_proj", "gate_proj"])
    model = get_peft_model(fresh_base(), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
    model.save_pretrained(folder)
    return folder


adapter = make_adapter(tempfile.mkdtemp())
tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
model = PeftModel.from_pretrained(fresh_base(), adapter, is_trainable=True)

a_params = [p for n, p in model.named_parameters() if p.requires_grad and "lora_A" in n]
b_params = [p for n, p in model.named_parameters() if p.requires_grad and "lora_B" in n]
optimizer = torch.optim.AdamW(
    [{"params": a_params, "lr": 5e-4}, {"params": b_params, "lr": 4e-3}], betas=(0.9, 0.99), weight_decay=0.01
)
scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=8)

rows = []
for i in range(24):
    x, y, what = 3 + i % 15, 2 + i % 8, ["stamps", "cards", "apples"][i % 3]
    rows.append(
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Eve has {x} boxes with {y} {what} each. How many {what} does Eve have?"},
            ],
            "noun": what,
        }
    )


def reward(completions, noun, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [float(n in t) + 0.5 * ("####" in t) - 0.01 * len(t) for t, n in zip(texts, noun)]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="steps",
    beta=0.05,
    save_steps=1,
    max_grad_norm=0.5,
)
trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=reward,
    args=args,
    train_dataset=Dataset.from_list(rows),
    optimizers=(optimizer, scheduler),
)
trainer.train()
